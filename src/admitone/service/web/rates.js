// Decisions per second, by verdict, over the last five minutes.

import { $, el, say } from "./dom.js";
import { brief, count } from "./format.js";
import { columns } from "./plot.js";

const VERDICTS = ["ADMITTED", "DUPLICATE", "REPLAYED", "QUARANTINED", "AMBIGUOUS"];
const SHOWN = 300;
const BIN = 5;
let seconds = null;

export function toldRates(found) {
  if (!Array.isArray(found)) return;
  seconds = new Map(found.map((line) => [line.at, line]));
  showRates();
}

export function showRates() {
  if (!seconds) return;
  const now = Math.floor(Date.now() / 1000);
  const end = now - (now % BIN);
  const bars = [];
  for (let start = end - SHOWN; start < end; start += BIN) {
    const parts = {};
    for (let at = start; at < start + BIN; at += 1) {
      const line = seconds.get(at);
      if (line) for (const name of VERDICTS) if (line[name]) parts[name] = (parts[name] || 0) + line[name] / BIN;
    }
    const clock = new Date(start * 1000).toISOString().slice(11, 19);
    bars.push({ parts, name: clock, tick: start % 60 === 0 ? clock.slice(0, 5) : null });
  }
  const shown = VERDICTS.filter((name) => name !== "REPLAYED" || bars.some((bar) => bar.parts[name]));
  columns($("rates-plot"), bars, VERDICTS, ["Nothing was decided in the last five minutes", "admitone run, or POST /v1/events"]);
  legend(shown);
  const last = bars.slice(-2).reduce((sum, bar) => sum + VERDICTS.reduce((all, name) => all + (bar.parts[name] || 0), 0), 0) / 2;
  say($("tile-rate"), brief(Math.round(last * 10) / 10));
  say($("tile-rate-note"), "over ten seconds");
  const decided = [...seconds.values()].reduce((sum, line) => sum + VERDICTS.reduce((all, name) => all + (line[name] || 0), 0), 0);
  say($("rates-foot"), decided ? `${count(decided)} decided in five minutes · UTC` : "");
}

function legend(names) {
  const list = $("rates-legend");
  if (list.dataset.key === names.join()) return;
  list.dataset.key = names.join();
  list.replaceChildren(...names.map((name) => el("li", {}, el("i", { class: name }), name.toLowerCase())));
}
