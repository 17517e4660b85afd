// How one item moved over time.

import { get } from "./api.js";
import { $, say } from "./dom.js";
import { count, windowKind, windowName } from "./format.js";
import { band } from "./plot.js";
import { state } from "./state.js";

const SHOWN = { minute: 60, hour: 48, day: 31, week: 26, month: 24 };
const FINER = { "1m": "minute", "1h": "hour", "1d": "day", "1w": "week", "1mo": "month", all: "day" };
const LONG = { minute: 60e3, hour: 3600e3, day: 86400e3, week: 7 * 86400e3, month: 31 * 86400e3 };
let asked = 0;

export async function showItem(dimensions, windows) {
  const mine = ++asked;
  const type = dimensions.find(({ dimension }) => dimension === state.dimension)?.item_type;
  const kind = FINER[state.window] || (windowKind(state.window) === "global" ? "day" : windowKind(state.window));
  const of = windows.filter((line) => line.kind === kind);
  if (!state.item || !type || !of.length) {
    say($("item-title"), "Movement");
    say($("item-badge"), "");
    say($("item-foot"), "");
    band($("item-plot"), [], ["No item chosen", "Choose one from the list to see how it moved."]);
    return;
  }
  const newestStart = Date.parse(of[of.length - 1].start);
  const shown = of.filter((line) => newestStart - Date.parse(line.start) <= SHOWN[kind] * LONG[kind]);
  const first = shown[0].window;
  let found;
  try {
    found = await get(`/v1/items/${encodeURIComponent(type)}/${encodeURIComponent(state.item)}`, { from: first, to: of[of.length - 1].window });
  } catch (problem) {
    if (mine === asked) band($("item-plot"), [], [problem.message, problem.remedy || ""]);
    return;
  }
  if (mine !== asked) return;
  const starts = new Map(shown.map((line) => [line.window, Date.parse(line.start)]));
  const points = found.windows
    .filter((line) => starts.has(line.window))
    .map((line) => ({ ...line, at: starts.get(line.window), name: windowName(line.window), tick: tick(line.window) }));
  say($("item-title"), state.item);
  say($("item-badge"), `by ${kind}`);
  band($("item-plot"), points, ["Not counted in these windows", ""]);
  const newest = found.windows[found.windows.length - 1];
  const parts = newest
    ? [`newest ${kind}: ${count(newest.estimate)}`, `between ${count(newest.lower)} and ${count(newest.upper)}`, "the band is where the truth lies", "UTC", "all values of the list"]
    : [];
  say($("item-foot"), (state.where ? parts : parts.slice(0, 4)).join(" · "));
}

function tick(key) {
  const name = windowName(key);
  const kind = windowKind(key);
  if (kind === "minute" || kind === "hour") return name.slice(11);
  return kind === "day" ? name.slice(5) : name;
}
