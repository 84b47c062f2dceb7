// A network as the server draws it, with the nodes to choose from; and the same as a table, for who reads it that way.

import { callForSvg } from "./api.js";
import { h, table } from "./dom.js";
import { shape } from "./format.js";

const SHAPES = new Set(["svg", "title", "style", "g", "rect", "ellipse", "path", "text", "tspan"]);
const BESIDE = 8; // pixels: rows whose middles are nearer to one height stand side by side
const MIN_ZOOM = 0.6; // below it a network that is too long is read by scrolling

/** The view of a network: its nodes, as the server lists them, and its drawing; addressOf(name) is where the server has one. */
export async function networkView(nodes, addressOf) {
  const parameters = h("input", { type: "checkbox", id: "parameters" });
  const fold = h("input", { type: "checkbox", id: "fold", checked: true });
  const drawing = h("div", { class: "drawing", tabindex: "0", role: "region", "aria-label": "Drawing of the network" });
  const details = h("div", { class: "node-details", "aria-live": "polite" }, "Choose a node to see its attributes. Arrow keys go along the edges.");
  let zoom = 1;
  const scale = (factor) => {
    zoom = Math.min(3, Math.max(0.2, zoom * factor));
    const picture = drawing.querySelector("svg");
    if (picture) {
      picture.setAttribute("width", picture.viewBox.baseVal.width * zoom);
      picture.setAttribute("height", picture.viewBox.baseVal.height * zoom);
    }
  };
  const choose = (node, alike) => details.replaceChildren(describe(nodes[node], alike.map((one) => nodes[one])));
  let asked = 0;
  const redraw = async () => {
    const mine = ++asked;
    const name = (fold.checked ? "folded" : "unfolded") + (parameters.checked ? "-with-parameters" : "");
    let content;
    try {
      content = picture(await callForSvg(addressOf(name)));
      roam(content, nodes, choose);
    } catch (error) {
      content = h("p", { class: "note" }, `${error.message} The nodes are in the table below.`);
    }
    if (mine !== asked) return;
    drawing.replaceChildren(content);
    scale(1);
  };
  const fit = () => {
    const picture = drawing.querySelector("svg");
    if (!picture) return;
    const { width, height } = picture.viewBox.baseVal;
    const tall = Math.max(MIN_ZOOM, (0.7 * window.innerHeight - 4) / height);
    scale(Math.min(1, tall, (drawing.clientWidth - 4) / width) / zoom);
  };
  for (const choice of [parameters, fold]) choice.addEventListener("change", redraw);
  await redraw();
  requestAnimationFrame(fit);
  const button = (label, words, action) => h("button", { type: "button", "aria-label": words, onclick: action }, label);
  return h(
    "div",
    {},
    h(
      "div",
      { class: "tools" },
      h("label", { class: "check" }, parameters, " Draw parameters"),
      h("label", { class: "check" }, fold, " Fold repeated blocks"),
      h("span", { class: "between" }),
      button("−", "Smaller", () => scale(1 / 1.25)),
      button("+", "Larger", () => scale(1.25)),
      button("Fit", "Fit into the frame", fit),
    ),
    drawing,
    details,
    h("details", {}, h("summary", {}, "The same as a table"), asTable(nodes)),
  );
}

const sheet = new CSSStyleSheet();

/** The server's SVG as an element of the page. Its style sheet becomes the page's: inline ones are forbidden here. The process of a
    session with its user's own code may have written it: what is not a shape or a text is refused. */
function picture(root) {
  const other = [root, ...root.querySelectorAll("*")].find((element) => !SHAPES.has(element.localName));
  if (other) throw new Error(`The drawing has an element <${other.localName}>, which is not shown.`);
  const style = root.querySelector("style");
  sheet.replaceSync(style.textContent);
  document.adoptedStyleSheets = [sheet];
  style.remove();
  root.removeAttribute("style");
  root.setAttribute("role", "group");
  return document.importNode(root, true);
}

/** Make the rows of a picture choosable. One is in the order of tabs; arrow keys go to its neighbours. */
function roam(picture, nodes, onChoose) {
  const marks = [...picture.querySelectorAll("[data-nodes]")].map((element) => {
    const [node, ...others] = element.dataset.nodes.split(" ").map(Number);
    return { element, node, alike: [node, ...others] };
  });
  if (!marks.length) return;
  const markOf = new Map(marks.flatMap((mark) => mark.alike.map((node) => [node, mark])));
  const middle = ({ element }) => {
    const { x, y, width, height } = element.getBBox();
    return { x: x + width / 2, y: y + height / 2 };
  };
  const readBy = (mark) => marks.find((other) => nodes[other.node].inputs.some(([from]) => markOf.get(from) === mark && other !== mark));
  const reads = (mark) => nodes[mark.node].inputs.map(([from]) => markOf.get(from)).find((other) => other && other !== mark);
  const beside = (mark, side) => {
    const here = middle(mark);
    const others = marks
      .map((other) => ({ other, at: middle(other) }))
      .filter(({ other, at }) => other !== mark && Math.abs(at.y - here.y) < BESIDE && side * (at.x - here.x) > 0);
    others.sort((a, b) => Math.abs(a.at.x - here.x) - Math.abs(b.at.x - here.x));
    return others[0]?.other;
  };
  const ways = { ArrowDown: readBy, ArrowUp: reads, ArrowLeft: (mark) => beside(mark, -1), ArrowRight: (mark) => beside(mark, 1) };
  let current = marks[0];
  for (const mark of marks) {
    const { element, node, alike } = mark;
    element.classList.add("node");
    element.setAttribute("role", "button");
    element.setAttribute("tabindex", mark === current ? "0" : "-1");
    element.setAttribute("aria-label", words(nodes[node]));
    element.addEventListener("focus", () => {
      current.element.setAttribute("tabindex", "-1");
      current = mark;
      element.setAttribute("tabindex", "0");
      onChoose(node, alike);
    });
    element.addEventListener("click", () => element.focus());
    element.addEventListener("keydown", (event) => {
      if (!(event.key in ways)) return;
      event.preventDefault();
      ways[event.key](mark)?.element.focus();
    });
  }
}

function words(node) {
  const { shape: size, datatype } = node.outputs[0];
  return `${node.op === null ? "" : `${node.op} `}${node.name}, ${shape(size)}${datatype ? ` ${datatype}` : ""}`;
}

function describe(node, alike) {
  const names = alike.slice(0, 6).map((one) => one.name);
  const rows = [
    ["Name", node.name],
    ...(alike.length > 1 ? [[`Drawn for ${alike.length}`, names.join(", ") + (alike.length > names.length ? ", …" : "")]] : []),
    ["Operator", node.op ?? node.kind],
    ...node.outputs.map((output) => [output.name, `${shape(output.shape)} ${output.datatype ?? ""}`]),
    ...Object.entries(node.attrs),
    ...(node.source ? [["Made at", node.source]] : []),
  ];
  return h("dl", { class: "facts" }, rows.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text))));
}

function asTable(nodes) {
  const rows = nodes.map((node, i) => ({ node, i }));
  const view = table(
    "Nodes of the network",
    [
      { title: "Node", header: true, cell: ({ node }) => node.name },
      { title: "Operator", cell: ({ node }) => node.op ?? node.kind },
      { title: "Inputs", cell: ({ node }) => node.inputs.map(([from]) => nodes[from].name).join(", ") },
      { title: "Output", cell: ({ node }) => node.outputs.map((output) => shape(output.shape)).join("; ") },
      { title: "Type", cell: ({ node }) => node.outputs[0].datatype ?? "?" },
    ],
    ({ i }) => i,
    "",
  );
  view.update(rows);
  return view.node;
}
