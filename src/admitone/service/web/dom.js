// Small helpers over the document; text is always set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  return filled(made, attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Set text only where it changed, so that screen readers and selections are left alone. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function options(select, lines, chosen) {
  const key = JSON.stringify(lines);
  if (select.dataset.key !== key) {
    select.dataset.key = key;
    select.replaceChildren(...lines.map(group));
  }
  if (select.value !== chosen) select.value = chosen;
}

function group(line) {
  if (!line.lines) return el("option", { value: line.value }, line.name);
  return el("optgroup", { label: line.name }, line.lines.map(group));
}
