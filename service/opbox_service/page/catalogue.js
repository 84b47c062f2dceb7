// The operators of the server, searched by name, alias and description; beside them the one that is chosen.

import { call, PATHS } from "./api.js";
import { h, write } from "./dom.js";
import { operatorForm, summary } from "./operator.js";

let operators = null;

export function catalogue(name) {
  const search = h("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false", placeholder: "convolution, softmax, …" });
  const matches = h("p", { class: "note", role: "status" }, "Loading the catalogue…");
  const list = h("ul", { class: "operators", "aria-label": "Operators" });
  const chosen = h("div", { class: "chosen" });
  const trouble = h("p", { class: "error", role: "alert" });

  search.addEventListener("input", filter);
  load();

  async function load() {
    try {
      operators ??= (await call("GET", PATHS.operators)).operators;
    } catch (error) {
      write(matches, "");
      write(trouble, error.message);
      return;
    }
    filter();
    if (!name) return;
    const operator = operators.find((one) => one.name === name || one.aliases.includes(name));
    if (operator) chosen.replaceChildren(operatorForm(operator));
    else write(trouble, `No operator is called ${name}.`);
  }

  function filter() {
    if (!operators) return;
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matching = operators
      .map((operator) => ({ operator, score: score(operator, words) }))
      .filter(({ score: points }) => points > 0)
      .sort((a, b) => b.score - a.score || inner(a) - inner(b) || a.operator.name.localeCompare(b.operator.name));
    list.parentElement?.classList.toggle("searching", words.length > 0);
    write(matches, `${matching.length} of ${operators.length} operators`);
    list.replaceChildren(
      ...matching.map(({ operator }) =>
        h(
          "li",
          {},
          h(
            "a",
            { href: `#/ops/${encodeURIComponent(operator.name)}`, "aria-current": operator.name === name ? "page" : null },
            h("strong", {}, operator.name),
            operator.aliases.length ? h("span", { class: "aliases" }, ` ${operator.aliases.join(", ")}`) : "",
            h("span", { class: "doc" }, summary(operator)),
          ),
        ),
      ),
    );
  }

  return {
    title: name ? `${name} · Operators` : "Operators",
    node: h(
      "div",
      { class: `catalogue${name ? " one" : ""}` },
      h(
        "div",
        { class: "find" },
        h("h1", { tabindex: "-1" }, name ? h("a", { href: "#/ops" }, "All operators") : "Operators"),
        h("label", { class: "field", for: "search" }, h("span", {}, "Search"), search),
        matches,
        list,
      ),
      h("div", {}, trouble, chosen),
    ),
    update() {},
  };
}

/** Names that begin with an underscore are MXNet's own, and come last. */
const inner = ({ operator }) => Number(operator.name.startsWith("_"));

/** How well an operator fits all of the words; 0 where it does not. */
function score(operator, words) {
  const names = [operator.name, ...operator.aliases].map((name) => name.toLowerCase());
  let sum = 1;
  for (const word of words) {
    if (names.includes(word)) sum += 8;
    else if (names.some((name) => name.startsWith(word))) sum += 4;
    else if (names.some((name) => name.includes(word))) sum += 2;
    else if (operator.doc.toLowerCase().includes(word)) sum += 1;
    else return 0;
  }
  return sum;
}
