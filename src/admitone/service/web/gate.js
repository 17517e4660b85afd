// The gate of a run: what was checked, what blocks it, and the command that shows or resolves it.

import { get, post } from "./api.js";
import { $, el, say } from "./dom.js";
import { ago, count } from "./format.js";
import { nothing } from "./plot.js";
import { state } from "./state.js";

let run = null;
let asked = 0;

export async function showGate() {
  const mine = ++asked;
  if (!state.run) {
    run = null;
    paint(null);
    return;
  }
  try {
    const found = await get(`/v1/runs/${encodeURIComponent(state.run)}`);
    if (mine === asked) paint((run = found));
  } catch (problem) {
    if (mine === asked) paint(null, problem);
  }
}

function paint(found, problem) {
  const closed = found?.state === "CLOSED";
  const colour = found ? (closed ? "closed" : found.gate) : "unknown";
  $("gate-tile").dataset.gate = found ? found.gate : "unknown";
  say($("tile-gate"), found ? colour : "–");
  const blockers = found ? found.checks.flatMap((check) => check.blockers) : [];
  say($("tile-gate-note"), found ? (blockers.length ? `${blockers.length} kinds of blockers` : closed ? "closed, still green" : "may be closed") : "no run yet");
  const badge = $("gate-badge");
  say(badge, found ? colour : "");
  badge.dataset.tone = found ? (found.gate === "green" ? "good" : "bad") : "";
  $("close-run").hidden = !found || closed || found.gate !== "green";
  const body = $("gate-body");
  if (!found) {
    body.replaceChildren(nothing(problem ? [problem.message, problem.remedy || ""] : ["No run yet", "A run appears with its first delivery."]));
  } else {
    body.replaceChildren(...found.checks.map(check));
  }
  books(found?.books);
  freshenGate();
}

function check(line) {
  return el("div", { class: "check", "data-passed": String(line.passed) },
    el("span", { class: "mark", "aria-label": line.passed ? "holds" : "does not hold" }, line.passed ? "✓" : "✗"),
    el("span", {}, line.criterion),
    el("span", { class: "evidence" }, line.evidence),
    line.blockers.map((blocker) =>
      el("div", { class: "blocker" },
        el("span", {}, el("b", {}, count(blocker.count)), ` ${blocker.what}`),
        el("div", { class: "command" }, el("code", { class: "code" }, blocker.command), copy(blocker.command)))));
}

function copy(text) {
  const button = el("button", { type: "button", class: "copy", "aria-label": `Copy ${text}` }, "copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    say(button, "copied");
    setTimeout(() => say(button, "copy"), 1500);
  });
  return button;
}

function books(found) {
  const names = { admitted: "tile-admitted", duplicates: "tile-duplicates", quarantined: "tile-quarantined" };
  for (const [name, id] of Object.entries(names)) {
    say($(id), found ? count(found[name]) : "–");
    say($(`${id}-note`), found && found.deliveries ? `${((100 * found[name]) / found.deliveries).toFixed(1)} % of ${count(found.deliveries)}` : "");
  }
}

export function freshenGate() {
  if (!run) {
    say($("gate-foot"), "");
    return;
  }
  const balanced = run.books ? (run.books.balanced ? "books balance" : "BOOKS DO NOT BALANCE") : "no books";
  const unread = run.unread && run.state === "OPEN" ? ` · ${count(run.unread)} deliveries wait to be decided` : "";
  const head = run.head ? ` · head of the closings ${run.head.slice(0, 16)}…` : "";
  say($("gate-foot"), `checked ${ago(Date.parse(run.checked_at))} · ${balanced}${unread}${head}`);
  $("gate-foot").title = run.head ? `head ${run.head}` : "";
}

export function listenToClosing(problem) {
  $("close-run").addEventListener("click", async (event) => {
    event.target.disabled = true;
    try {
      await post(`/v1/runs/${encodeURIComponent(state.run)}/close`, {});
    } catch (error) {
      problem(error);
    }
    event.target.disabled = false;
    await showGate();
  });
}
