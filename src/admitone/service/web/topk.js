// The heaviest items, with bars: the solid part is certain, the light part possible.

import { $, el, options, say } from "./dom.js";
import { ago, bounds, count, windowName } from "./format.js";
import { nothing } from "./plot.js";
import { change, state } from "./state.js";

const SIZES = [
  ["1m", "newest minute", "minute"], ["1h", "newest hour", "hour"], ["1d", "newest day", "day"],
  ["1w", "newest week", "week"], ["1mo", "newest month", "month"], ["all", "all time", "global"],
];
let last = null;

export function chooseFrom(dimensions, windows) {
  options($("dimension"), dimensions.map(({ dimension }) => ({ value: dimension, name: dimension })), state.dimension);
  const chosen = dimensions.find(({ dimension }) => dimension === state.dimension);
  const values = Object.entries(chosen?.attributes || {}).map(([attribute, found]) => ({
    name: attribute,
    lines: found.map((value) => ({ value: `${attribute}=${value}`, name: value })),
  }));
  options($("where"), [{ value: "", name: "everything" }, ...values.filter(({ lines }) => lines.length)], state.where);
  const named = SIZES.map(([, , kind]) => kind).filter((kind) => kind !== "global").map((kind) => ({
    name: `one ${kind}`,
    lines: windows.filter((line) => line.kind === kind).reverse().slice(0, 200)
      .map((line) => ({ value: line.window, name: windowName(line.window) + (line.complete ? "" : " (open)") })),
  }));
  options($("window"), [...SIZES.map(([value, name]) => ({ value, name })), ...named.filter(({ lines }) => lines.length)], state.window);
}

export function listenToChoices() {
  $("dimension").addEventListener("change", (event) => change({ dimension: event.target.value, where: "", item: "" }));
  $("where").addEventListener("change", (event) => change({ where: event.target.value }));
  $("window").addEventListener("change", (event) => change({ window: event.target.value }));
  $("choose").addEventListener("submit", (event) => event.preventDefault());
}

export function showTop(answer) {
  last = answer;
  const list = $("ranks");
  if (answer.problem) {
    list.replaceChildren(el("li", {}, nothing([answer.problem, answer.remedy ? `Try: ${answer.remedy}` : ""])));
    say($("top-foot"), "");
    badge("", "");
    return;
  }
  const heaviest = Math.max(...answer.items.map((line) => line.upper), 1);
  const origin = commonOrigin(answer.items);
  if (!answer.items.length) {
    list.replaceChildren(el("li", {}, nothing(["Nothing in this window", "Choose another window or list."])));
  } else {
    if (list.querySelector(".empty")) list.replaceChildren();
    answer.items.forEach((line, at) => row(list, at, line, heaviest, origin));
    while (list.children.length > answer.items.length) list.lastChild.remove();
  }
  mark();
  freshen();
}

/** The site that all items are pages of, which then need not be said on every line. */
function commonOrigin(items) {
  const origins = new Set(items.map(({ item }) => /^https?:\/\/[^/]+(?=\/)/.exec(item)?.[0]));
  return origins.size === 1 ? [...origins][0] || "" : "";
}

function row(list, at, line, heaviest, origin) {
  let entry = list.children[at];
  if (!entry) {
    entry = el("li", {}, el("button", { type: "button", class: "rank" },
      el("span", { class: "place" }), el("span", { class: "name" }), el("span", { class: "value" }),
      el("span", { class: "track" }, el("span", { class: "possible" }), el("span", { class: "certain" }))));
    entry.firstChild.addEventListener("click", (event) => change({ item: event.currentTarget.dataset.item }));
    list.append(entry);
  }
  const button = entry.firstChild;
  button.dataset.item = line.item;
  say(button.querySelector(".place"), String(line.rank));
  button.title = line.item;
  say(button.querySelector(".name"), line.item.slice(origin.length) || "(empty)");
  const value = button.querySelector(".value");
  const text = `${count(line.estimate)}|${bounds(line)}`;
  if (value.dataset.text !== text) {
    value.dataset.text = text;
    value.replaceChildren(count(line.estimate), el("small", {}, bounds(line)));
  }
  button.querySelector(".possible").style.width = `${(100 * line.upper) / heaviest}%`;
  button.querySelector(".certain").style.width = `${(100 * line.lower) / heaviest}%`;
}

export function mark() {
  for (const button of $("ranks").querySelectorAll(".rank")) {
    button.setAttribute("aria-pressed", String(button.dataset.item === state.item));
  }
}

function badge(text, tone) {
  say($("top-state"), text);
  $("top-state").dataset.tone = tone;
}

/** How fresh and how complete; said again as time passes. */
export function freshen() {
  if (!last || last.problem) return;
  badge(last.complete ? "complete" : "still open", last.complete ? "good" : "");
  const parts = [
    windowName(last.window),
    `${count(last.total)} counted`,
    `${count(last.distinct)} different`,
    last.late ? `${count(last.late)} late` : null,
    `error at most ${last.error_bound} %`,
    commonOrigin(last.items).replace(/^https?:\/\//, "") || null,
    last.updated_at ? `as of ${ago(Date.parse(last.updated_at))}` : null,
    last.source?.instead_of ? `from the store, ${last.source.instead_of} does not have it` : null,
  ];
  say($("top-foot"), parts.filter(Boolean).join(" · "));
}

export const lastTop = () => last;
