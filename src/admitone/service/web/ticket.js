// One event's ticket: every delivery that claimed it, and the proof of its receipt for strangers.

import { get, getText } from "./api.js";
import { $, el, say } from "./dom.js";
import { count } from "./format.js";
import { state } from "./state.js";

export function listenToTickets() {
  $("look-up").addEventListener("submit", async (event) => {
    event.preventDefault();
    const name = $("event-id").value.trim();
    if (name) await show(name);
  });
}

async function show(name) {
  say($("ticket-title"), name);
  const question = { event: name, run: state.run };
  let parts;
  try {
    const found = await get("/v1/receipts", question);
    parts = [deliveries(found.deliveries), found.receipt ? await proof(question) : null];
  } catch (problem) {
    parts = [trouble(problem)];
  }
  $("ticket-body").replaceChildren(...parts.filter(Boolean));
  $("ticket").showModal();
}

function deliveries(rows) {
  return el("table", { class: "deliveries" },
    el("thead", {}, el("tr", {}, ["decided", "verdict", "source", "place on the log", "rules"].map((name) => el("th", {}, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {},
      el("td", {}, row.decided_at || ""),
      el("td", {}, row.reason ? `${row.verdict}, ${row.reason}` : row.verdict),
      el("td", {}, `${row.source.partition}:${row.source.offset}`),
      el("td", {}, row.bus ? `${row.bus.topic}:${row.bus.partition}:${row.bus.offset}` : "–"),
      el("td", {}, row.rules ? row.rules.slice(0, 12) : "–")))));
}

async function proof(question) {
  let text;
  try {
    text = await getText("/v1/proof", question);
  } catch (problem) {
    return trouble(problem);
  }
  const found = JSON.parse(text);
  const { statement, seal } = found.closing;
  const lines = [
    ["in the tree", `leaf ${count(found.number + 1)} of ${count(statement.receipts)}, ${found.path.length} steps to the root`],
    ["root", statement.merkle_root],
    ["closed", `${new Date(statement.closed_at).toISOString()} by ${statement.author || "nobody named"}, closing ${statement.number}`],
    ["signed with", seal ? seal.public_key : "not signed"],
  ];
  return el("div", { class: "proof" },
    el("dl", {}, lines.flatMap(([name, value]) => [el("dt", {}, name), el("dd", { class: "code" }, value)])),
    el("button", { type: "button", class: "act", id: "download-proof", onclick: () => download(text, `proof-${question.event}.json`) }, "Download the proof"),
    el("p", { class: "foot" }, "admitone proof --verifier prints the program that checks it, with nothing but Python"));
}

function download(text, name) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function trouble(problem) {
  return el("div", { class: "empty" }, [problem.message, problem.remedy].filter(Boolean).map((line) => el("p", {}, line)));
}
