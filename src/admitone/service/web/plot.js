// Two plots in plain SVG: a band with a curve, and stacked columns. Redrawn at the size they have.

import { el, svg } from "./dom.js";
import { brief, count } from "./format.js";

const EDGE = { left: 46, right: 10, top: 10, bottom: 22 };
const drawn = new WeakMap();

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) drawn.get(target)?.();
});

/** Draw into a box now and whenever its size changes; without anything to draw, say what is missing. */
function draw(box, empty, make) {
  const again = () => {
    const { width, height } = box.getBoundingClientRect();
    if (width < 40 || height < 40) return;
    box.replaceChildren(empty ? nothing(empty) : svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" }, make(width, height)));
  };
  if (!drawn.has(box)) resized.observe(box);
  drawn.set(box, again);
  again();
}

export function nothing([title, more]) {
  return el("div", { class: "empty" }, el("strong", {}, title), el("span", {}, more));
}

function ceiling(value) {
  if (value <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * unit).find((step) => step >= value);
}

function rules(width, height, most) {
  const lines = [];
  for (let step = 0; step <= 4; step += 1) {
    const share = step / 4;
    if (most < 4 && !Number.isInteger(most * share)) continue;
    const y = EDGE.top + (height - EDGE.top - EDGE.bottom) * (1 - share);
    lines.push(svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y, y2: y }));
    lines.push(svg("text", { x: EDGE.left - 8, y: y + 4, "text-anchor": "end" }, brief(Math.round(most * share * 100) / 100)));
  }
  return lines;
}

/** points: {at, name, tick, lower, upper, estimate, complete}, oldest first; the band is where the truth lies. */
export function band(box, points, empty) {
  draw(box, points.length ? null : empty, (width, height) => {
    const most = ceiling(Math.max(...points.map((point) => point.upper), 1));
    const inner = width - EDGE.left - EDGE.right;
    const [first, span] = [points[0].at, points[points.length - 1].at - points[0].at];
    const x = (at) => EDGE.left + 6 + (span ? ((inner - 12) * (at - first)) / span : inner / 2);
    const y = (value) => EDGE.top + (height - EDGE.top - EDGE.bottom) * (1 - value / most);
    const places = points.map((point) => ({ ...point, x: x(point.at) }));
    const along = (name) => places.map((place) => `${place.x.toFixed(1)},${y(place[name]).toFixed(1)}`);
    let edge = -Infinity;
    const ticks = places.filter((place) => place.x - edge >= 80 && (edge = place.x));
    return [
      ...rules(width, height, most),
      svg("polygon", { class: "band", points: [...along("upper"), ...along("lower").reverse()].join(" ") }),
      svg("polyline", { class: "curve", points: along("estimate").join(" ") }),
      ...places
        .filter((_, at) => points.length <= 40 || at === points.length - 1)
        .map((place) =>
          svg(
            "circle",
            { class: place.complete ? "point" : "point open", cx: place.x, cy: y(place.estimate), r: 3.6 },
            svg("title", {}, `${place.name}: ${count(place.estimate)} (${count(place.lower)} – ${count(place.upper)})`),
          ),
        ),
      ...ticks.map((place) => svg("text", { x: place.x, y: height - 5, "text-anchor": "middle" }, place.tick)),
    ];
  });
}

/** columns: {tick, parts: {name: value}}, oldest first; names say what is stacked from below. */
export function columns(box, bars, names, empty) {
  const total = (bar) => names.reduce((sum, name) => sum + (bar.parts[name] || 0), 0);
  const anything = bars.some((bar) => total(bar) > 0);
  draw(box, anything ? null : empty, (width, height) => {
    const most = ceiling(Math.max(...bars.map(total), 1));
    const step = (width - EDGE.left - EDGE.right) / bars.length;
    const room = height - EDGE.top - EDGE.bottom;
    const made = rules(width, height, most);
    bars.forEach((bar, at) => {
      let base = height - EDGE.bottom;
      const x = EDGE.left + at * step;
      for (const name of names) {
        const tall = (room * (bar.parts[name] || 0)) / most;
        if (tall <= 0) continue;
        const size = Math.max(tall, 1);
        base -= size;
        made.push(
          svg("rect", { class: name, x: x + step * 0.1, y: base, width: Math.max(step * 0.8, 1), height: size },
            svg("title", {}, `${bar.name}: ${count(Math.round((bar.parts[name] || 0) * 10) / 10)} ${name.toLowerCase()} / s`)),
        );
      }
      if (bar.tick) made.push(svg("text", { x: x + step / 2, y: height - 5, "text-anchor": "middle" }, bar.tick));
    });
    return made;
  });
}
