// The operators of the server, folded by family, searched by name, alias and description; beside them the one that is chosen.

import { call, PATHS, PRESETS_FILE } from "./api.js";
import { h, write } from "./dom.js";
import { operatorForm, summary } from "./operator.js";

let operators = null;
let presets = null;
const FURTHER = "Of packages and files of this server's";

export function catalogue(name) {
  const search = h("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false", placeholder: "convolution, softmax, …" });
  const matches = h("p", { class: "note", role: "status" }, "Loading the catalogue…");
  const list = h("div", { class: "families" });
  const chosen = h("div", { class: "chosen" });
  const trouble = h("p", { class: "error", role: "alert" });

  search.addEventListener("input", filter);
  load();

  async function load() {
    try {
      presets ??= await call("GET", PRESETS_FILE);
      operators ??= (await call("GET", PATHS.operators)).operators;
    } catch (error) {
      write(matches, "");
      write(trouble, error.message);
      return;
    }
    filter();
    if (!name) return;
    const operator = operators.find(isChosen);
    if (operator) chosen.replaceChildren(operatorForm(operator, presets[operator.name]));
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
    const members = matching.map(({ operator }) => operator);
    list.replaceChildren(...(words.length ? [listOf(members, "Matching operators")] : families(members)));
  }

  /** A fold for each family; that of the chosen operator is open. */
  function families(all) {
    const groups = new Map(Object.values(presets).map((preset) => [preset.family, []]));
    for (const operator of all) {
      const family = presets[operator.name]?.family ?? FURTHER;
      if (!groups.has(family)) groups.set(family, []);
      groups.get(family).push(operator);
    }
    return [...groups]
      .filter(([, members]) => members.length)
      .map(([family, members]) =>
        h(
          "details",
          { class: "family", open: members.some((one) => isChosen(one)) },
          h("summary", {}, family, h("span", { class: "note" }, ` ${members.length}`)),
          listOf(members, family),
        ),
      );
  }

  function listOf(members, label) {
    return h("ul", { class: "operators", "aria-label": label }, members.map(entry));
  }

  function isChosen(operator) {
    return operator.name === name || operator.aliases.includes(name);
  }

  function entry(operator) {
    return h(
      "li",
      {},
      h(
        "a",
        { href: `#/ops/${encodeURIComponent(operator.name)}`, "aria-current": isChosen(operator) ? "page" : null },
        h("strong", {}, operator.name),
        operator.aliases.length ? h("span", { class: "aliases" }, ` ${operator.aliases.join(", ")}`) : "",
        h("span", { class: "doc" }, summary(operator)),
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
