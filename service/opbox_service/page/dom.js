// Elements, made by functions: nothing on this page is ever parsed from a string of HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("p", { class: "note", onclick: f }, "text", child). Null and false children are left out. */
export function h(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), attributes, children);
}

function dress(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Write a text, unless it is there already: screen readers would say it again. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A list whose entries stay the same elements as long as their keys do, so that focus and selection stay too.

    create(item) gives { node, update(item) }. */
export function keyed(parent, create) {
  const entries = new Map();
  return (items, key) => {
    const wanted = new Set(items.map(key));
    for (const [name, entry] of entries) {
      if (!wanted.has(name)) {
        entry.node.remove();
        entries.delete(name);
      }
    }
    items.forEach((item, position) => {
      let entry = entries.get(key(item));
      if (!entry) {
        entry = create(item);
        entries.set(key(item), entry);
      }
      if (parent.children[position] !== entry.node) parent.insertBefore(entry.node, parent.children[position] ?? null);
      entry.update(item);
    });
  };
}

/** A table of named columns that becomes a list of cards on a phone; roles are written out, as that takes them away.

    columns: [{ title, cell(item) → text or node, number: align right }]. */
export function table(caption, columns, key, empty) {
  const body = h("tbody", { role: "rowgroup" });
  const update = keyed(body, (first) => {
    const cells = columns.map((column) =>
      h(column.header ? "th" : "td", {
        role: column.header ? "rowheader" : "cell",
        scope: column.header ? "row" : null,
        "data-label": column.title,
        class: column.number ? "number" : null,
      }),
    );
    columns.forEach((column, i) => column.node && cells[i].append(column.node(first)));
    const refresh = (item) => columns.forEach((column, i) => column.cell && write(cells[i], column.cell(item)));
    return { node: h("tr", { role: "row" }, cells), update: refresh };
  });
  const head = columns.map((column) =>
    h("th", { role: "columnheader", scope: "col", class: column.number ? "number" : null }, column.title),
  );
  const grid = h(
    "table",
    { role: "table" },
    h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
    body,
  );
  const nothing = h("p", { class: "note" }, empty);
  return {
    node: h("div", { class: "table" }, grid, nothing),
    update(items) {
      grid.hidden = items.length === 0;
      nothing.hidden = items.length > 0;
      update(items, key);
    },
  };
}

/** A section with a heading. */
export function section(title, ...children) {
  const id = `h-${title.toLowerCase().replace(/\W+/g, "-")}`;
  return h("section", { "aria-labelledby": id, class: "panel" }, h("h2", { id }, title), children);
}
