// What was not admitted, with both payloads and their difference, and what to do about it.

import { get, post } from "./api.js";
import { $, el, say } from "./dom.js";
import { ago, count } from "./format.js";
import { nothing } from "./plot.js";
import { change, state } from "./state.js";

const PAGE = 100;
let asked = 0;
let acted = () => {};

export async function showQuarantine() {
  const mine = ++asked;
  const list = $("held");
  let found;
  try {
    found = await get("/v1/quarantine", { run: state.run, limit: 500 });
  } catch (problem) {
    if (mine === asked) list.replaceChildren(el("li", {}, nothing([problem.message, problem.remedy || ""])));
    return;
  }
  if (mine !== asked) return;
  const all = found.quarantined;
  const reasons = new Map();
  for (const row of all) reasons.set(row.reason, (reasons.get(row.reason) || 0) + 1);
  $("reasons").replaceChildren(...[...reasons].sort((a, b) => b[1] - a[1]).map(([reason, size]) =>
    el("li", {}, el("button", { type: "button", "aria-pressed": String(state.reason === reason), onclick: () => change({ reason: state.reason === reason ? "" : reason }) }, `${reason} ${count(size)}`))));
  const rows = all.filter((row) => !state.reason || row.reason === state.reason).reverse();
  rows.sort((a, b) => (b.reason === "PAYLOAD_MISMATCH") - (a.reason === "PAYLOAD_MISMATCH"));
  const badge = $("quarantine-badge");
  say(badge, all.length ? `${count(all.length)}${found.next ? "+" : ""} open` : "empty");
  badge.dataset.tone = all.length ? "warn" : "good";
  list.replaceChildren(...(rows.length ? rows.slice(0, PAGE).map(line) : [el("li", {}, nothing(["Nothing is held back", "What is not admitted shows up here, with its reason."]))]));
  say($("quarantine-foot"), rows.length > PAGE ? `the first ${PAGE} of ${count(rows.length)}; admitone quarantine list shows all` : "");
}

function line(row) {
  return el("li", {}, el("button", { type: "button", "data-id": row.id, onclick: () => change({ held: row.id }) },
    el("span", { class: "what" }, row.event_id || "no readable event id"),
    el("span", { class: "why" }, row.reason),
    el("span", { class: "when" }, `${row.event_class || "unknown class"} · ${ago(Date.parse(row.decided_at))} · ${row.id}`)));
}

export async function showHeld() {
  const dialog = $("contradiction");
  if (!state.held) {
    if (dialog.open) dialog.close();
    return;
  }
  const body = $("contradiction-body");
  if (!dialog.open) dialog.showModal();
  body.replaceChildren(el("p", {}, "looking…"));
  try {
    const found = await get(`/v1/quarantine/${encodeURIComponent(state.held)}`);
    say($("contradiction-title"), `${found.reason} · ${found.event_id || found.id}`);
    body.replaceChildren(...held(found));
  } catch (problem) {
    body.replaceChildren(el("p", { class: "problem" }, problem.message), el("p", {}, problem.remedy || ""));
  }
}

function held(found) {
  const facts = [
    ["class", found.event_class], ["run", found.run_id], ["decided", found.decided_at],
    ["source", `${found.source.partition}:${found.source.offset}`],
    ["identity", found.identity],
    ["done", found.resolution ? `${found.resolution.action} by ${found.resolution.author}: ${found.resolution.reason}` : null],
  ];
  const changed = new Set((found.difference || []).map((change) => change.path));
  return [
    el("dl", { class: "facts" }, facts.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    found.difference?.length ? changes(found.difference) : null,
    el("div", { class: found.first_decision ? "sides" : "sides one" },
      found.first_decision ? side("admitted first", found.first_envelope, changed) : null,
      side("delivered", found.envelope, changed)),
    found.resolution ? null : decide(found),
  ].filter(Boolean);
}

function side(title, text, changed) {
  const pre = el("pre", {});
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    document = undefined;
  }
  if (document === undefined) pre.append(text ?? "(no longer kept)");
  else write(pre, document, "", "", changed, "");
  return el("div", { class: "side" }, el("h3", {}, title), pre);
}

/** Write a document line by line; the lines that differ are marked. */
function write(pre, value, path, indent, changed, name, last = true) {
  const label = name === "" ? "" : `${JSON.stringify(name)}: `;
  const comma = last ? "" : ",";
  const put = (text) => pre.append(changed.has(path) ? el("mark", {}, text) : text, "\n");
  if (value === null || typeof value !== "object") {
    put(`${indent}${label}${JSON.stringify(value)}${comma}`);
    return;
  }
  const list = Array.isArray(value);
  const entries = Object.entries(value);
  put(`${indent}${label}${list ? "[" : "{"}`);
  entries.forEach(([key, inner], at) => {
    const here = `${path}/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`;
    write(pre, inner, here, `${indent}  `, changed, list ? "" : key, at === entries.length - 1);
  });
  pre.append(`${indent}${list ? "]" : "}"}${comma}\n`);
}

function changes(list) {
  const shown = (value) => (value === undefined ? "–" : JSON.stringify(value));
  return el("table", { class: "changes" },
    el("thead", {}, el("tr", {}, el("th", {}, "where they differ"), el("th", {}, "admitted first"), el("th", {}, "delivered"))),
    el("tbody", {}, list.map((change) => el("tr", {}, el("td", {}, change.path || "/"), el("td", {}, shown(change.first)), el("td", {}, shown(change.delivered))))));
}

function decide(found) {
  const why = el("textarea", { id: "why", required: true, placeholder: "Why; kept with the decision", rows: 2 });
  const problem = el("p", { class: "problem", hidden: true });
  const act = async (path, body) => {
    if (!why.reportValidity()) return;
    try {
      const done = await post(`/v1/quarantine/${encodeURIComponent(found.id)}/${path}`, { reason: why.value, ...body });
      const refused = Object.keys(done.still_refused || {});
      if (refused.length) throw new Error(`It stays in quarantine: ${refused.join(", ")}.`);
      change({ held: "" });
      acted();
    } catch (error) {
      problem.hidden = false;
      say(problem, error.remedy ? `${error.message} Try: ${error.remedy}` : error.message);
    }
  };
  const button = (text, title, press, kind = "act") => el("button", { type: "button", class: kind, title, onclick: press }, text);
  const contradiction = found.reason === "PAYLOAD_MISMATCH";
  return el("form", { class: "decide", onsubmit: (event) => event.preventDefault() },
    el("label", { for: "why" }, "Reason"), why,
    el("div", { class: "buttons" },
      contradiction ? button("Keep the first", "Confirm the admission", () => act("release", { choice: "keep-first" })) : null,
      contradiction ? button("Admit as new", "Admit this payload under a new identity that names the old", () => act("release", { choice: "as-new" }), "act second") : null,
      contradiction ? null : button("Release", "Deliver it again, by the rules in force now", () => act("release", {})),
      button("Discard", "Give it up; it stays on record", () => act("discard", {}), "act second")),
    problem);
}

export function listenToQuarantine(done) {
  acted = done;
  $("contradiction").addEventListener("close", () => change({ held: "" }));
  $("contradiction").addEventListener("click", (event) => {
    if (event.target === event.currentTarget) event.currentTarget.close();
  });
}
