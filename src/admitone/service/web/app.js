// The dashboard: what is looked at lives in the address, what changes comes from /v1/live.

import { follow, get, keepToken, onTokenNeeded } from "./api.js";
import { $, options, say } from "./dom.js";
import { ago, brief } from "./format.js";
import { freshenGate, listenToClosing, showGate } from "./gate.js";
import { showItem } from "./item.js";
import { listenToQuarantine, showHeld, showQuarantine } from "./quarantine.js";
import { showRates, toldRates } from "./rates.js";
import { listenToTickets } from "./ticket.js";
import { change, onChange, readAddress, state } from "./state.js";
import { chooseFrom, freshen, listenToChoices, lastTop, mark, showTop } from "./topk.js";

let dimensions = [];
let windows = [];
let ending = () => {};
let heard = 0;
let gates = "";

async function start() {
  listenToTheme();
  readAddress();
  listenToChoices();
  listenToClosing((problem) => notice(problem.message, problem.remedy));
  listenToTickets();
  listenToQuarantine(() => { showGate(); showQuarantine(); });
  $("run").addEventListener("change", (event) => change({ run: event.target.value }));
  onTokenNeeded(askForToken);
  onChange(changed);
  await refreshLists();
  listen();
  showGate();
  showQuarantine();
  showHeld();
  setInterval(tick, 1000);
  setInterval(refreshLists, 15000);
}

/** What can be chosen: lists, windows, runs. */
async function refreshLists() {
  try {
    const [lists, runs] = await Promise.all([get("/v1/dimensions"), get("/v1/runs")]);
    dimensions = lists.dimensions;
    options($("run"), runs.runs.map(({ run_id, state: is }) => ({ value: run_id, name: is === "CLOSED" ? `${run_id} (closed)` : run_id })), state.run);
    const known = runs.runs.map(({ run_id }) => run_id);
    const changes = {};
    if (!known.includes(state.run)) changes.run = known[known.length - 1] || "";
    if (!dimensions.some(({ dimension }) => dimension === state.dimension)) changes.dimension = dimensions[0]?.dimension || "";
    windows = await get("/v1/windows", { newest: 200 }).then((found) => found.windows, () => []);
    change(changes);
    chooseFrom(dimensions, windows);
    if ($("run").value !== state.run) $("run").value = state.run;
    await showItem(dimensions, windows);
  } catch (problem) {
    connection("down", problem);
  }
}

function listen() {
  ending();
  const question = { dimension: state.dimension, window: state.window, where: state.where, k: 25 };
  ending = follow(question, told, connection);
}

function told(event, document) {
  heard = Date.now();
  if (event === "topk") {
    const before = lastTop();
    showTop(document);
    if (!state.item && document.items?.length) change({ item: document.items[0].item });
    else if (before?.source?.revision !== document.source?.revision) showItem(dimensions, windows);
    if (before && before.window !== document.window) refreshLists();
  }
  if (event === "rates") toldRates(document);
  if (event === "lag") showLag(document);
  if (event === "gate") toldGates(document);
}

function toldGates(document) {
  if (document.problem) return;
  const line = document.runs.find(({ run_id }) => run_id === state.run);
  const key = JSON.stringify([line, document.runs.length]);
  if (key === gates) return;
  gates = key;
  if (!line) refreshLists();
  showGate();
  showQuarantine();
}

function showLag(lag) {
  if (lag.problem) {
    notice(lag.problem, lag.remedy);
    return;
  }
  const waiting = lag.undecided + lag.uncounted;
  say($("tile-waiting"), brief(waiting));
  const parts = [`${brief(lag.undecided)} undecided`, `${brief(lag.uncounted)} uncounted`];
  if (lag.ambiguous) parts.push(`${brief(lag.ambiguous)} ambiguous`);
  say($("tile-waiting-note"), waiting || lag.ambiguous ? parts.join(", ") : lag.running ? "pipeline is up to date" : "nothing waits");
  if (lag.drift) notice(lag.drift === 1 ? "A topic is not as agreed." : `${lag.drift} topics are not as agreed.`, "admitone topics check");
  else if (waiting && !lag.running) notice(`${brief(waiting)} wait, and no pipeline runs here.`, "admitone run");
  else notice("");
}

function notice(text, remedy = "", kind = "") {
  const box = $("notice");
  box.hidden = !text;
  box.dataset.kind = kind;
  say(box, remedy ? `${text} Try: ${remedy}` : text);
}

function connection(now, problem) {
  $("connection").dataset.state = now;
  if (now === "live") {
    heard = Date.now();
    say($("connection-text"), "live");
    if ($("notice").dataset.kind === "down") notice("");
  } else {
    say($("connection-text"), heard ? `no answer, shown as of ${ago(heard)}` : "no answer");
    notice(problem?.message || "The service does not answer.", problem?.remedy || "is admitone serve running?", "down");
  }
}

function changed(names) {
  const any = (...wanted) => wanted.some((name) => names.includes(name));
  if (any("dimension", "window", "where")) {
    chooseFrom(dimensions, windows);
    listen();
  }
  if (any("dimension", "window", "item")) showItem(dimensions, windows);
  if (any("item")) mark();
  if (any("run")) { gates = ""; showGate(); }
  if (any("run", "reason")) showQuarantine();
  if (any("held")) showHeld();
}

function tick() {
  freshen();
  freshenGate();
  showRates();
  if ($("connection").dataset.state === "down" && heard) say($("connection-text"), `no answer, shown as of ${ago(heard)}`);
}

let asking = null;
function askForToken() {
  if (asking) return asking;
  const dialog = $("sign-in");
  dialog.showModal();
  asking = new Promise((go) => {
    const form = $("sign-in-form");
    form.onsubmit = (event) => {
      event.preventDefault();
      keepToken($("token").value.trim());
      $("token").value = "";
      dialog.close();
      asking = null;
      go();
    };
  });
  $("sign-in").addEventListener("cancel", (event) => event.preventDefault());
  return asking;
}

function listenToTheme() {
  const kept = localStorage.getItem("admitone-theme");
  if (kept) document.documentElement.dataset.theme = kept;
  $("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("admitone-theme", document.documentElement.dataset.theme);
  });
}

start();
