// The API's own description, rendered here: nothing is loaded from anywhere else.

import { get } from "./api.js";
import { $, el } from "./dom.js";

function kind(schema = {}) {
  const found = schema.anyOf ? schema.anyOf.filter((one) => one.type !== "null") : [schema];
  const named = found.map((one) => one.$ref?.split("/").pop() || (one.enum ? one.enum.join(" | ") : one.format || one.type || "anything"));
  const limits = ["minimum", "maximum", "minLength", "maxLength", "pattern"]
    .flatMap((name) => found.filter((one) => one[name] !== undefined).map((one) => `${name} ${one[name]}`));
  return [...new Set([...named, ...limits])].join(", ");
}

function operation(method, path, about) {
  const parameters = about.parameters || [];
  const body = about.requestBody?.content || {};
  const examples = Object.entries(body).flatMap(([type, content]) =>
    Object.values(content.examples || {}).map((example) => el("div", {}, el("p", {}, `${type}, for example`), el("pre", {}, JSON.stringify(example.value, null, 2)))));
  return el("details", { class: "operation" },
    el("summary", {}, el("span", { class: "method" }, method.toUpperCase()), el("span", { class: "path" }, path), el("span", { class: "summary" }, about.summary || "")),
    el("div", { class: "more" },
      el("p", {}, about.description || ""),
      parameters.length ? el("table", {}, el("tbody", {}, parameters.map((each) =>
        el("tr", {}, el("td", {}, el("code", {}, each.name)), el("td", {}, `${each.in}${each.required ? ", required" : ""}`), el("td", {}, kind(each.schema)), el("td", {}, each.description || each.schema?.description || ""))))) : null,
      examples,
      el("table", {}, el("tbody", {}, Object.entries(about.responses).map(([status, answer]) =>
        el("tr", {}, el("td", {}, el("code", {}, status)), el("td", {}, answer.description), el("td", {}, Object.keys(answer.content || {}).join(", "))))))));
}

get("/openapi.json").then(
  (schema) => $("docs").replaceChildren(
    el("p", { class: "about" }, schema.info.description),
    ...Object.entries(schema.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, about]) => operation(method, path, about)))),
  (problem) => $("docs").replaceChildren(el("p", { class: "problem" }, problem.message)),
);
