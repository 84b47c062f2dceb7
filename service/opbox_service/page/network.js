// A network, drawn; and the same as a table, for who reads it that way.

import { h, svg, table } from "./dom.js";
import { shape } from "./format.js";
import { framed } from "./frames.js";

const MOST = 1500;
const BESIDE = 20; // pixels: boxes whose middles are nearer to one height stand side by side
const LEAST_ZOOM = 0.6; // below it a network that is too long is read by scrolling
const PARAMETER = /(^|_)(weight|bias|gamma|beta|moving_mean|moving_var|running_mean|running_var|parameters|alpha|init_[a-z]+)$/;
const KINDS = [
  ["weights", /^(Convolution|Deconvolution|FullyConnected|Embedding|RNN|.*[Cc]onvolution)$/],
  ["norm", /Norm|LRN/],
  ["activation", /^(Activation|LeakyReLU|relu|sigmoid|tanh|softsign|softmax|log_softmax|SoftmaxActivation|gelu|erf)$/],
  ["pool", /[Pp]ool|UpSampling|BilinearResize/],
  ["loss", /Output$|[Ll]oss|softmax_cross_entropy/],
];

/** The view of an executor's network, as the route `executor` answers it. */
export function networkView({ network: nodes, heads, repeats }) {
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
  const redraw = () => {
    const folded = folding(nodes, fold.checked ? repeats : []);
    const choose = (node) => details.replaceChildren(describe(node, folded.alike(node)));
    drawing.replaceChildren(draw(nodes, heads, folded, parameters.checked, choose));
    scale(1);
  };
  const fit = () => {
    const picture = drawing.querySelector("svg");
    if (!picture) return;
    const { width, height } = picture.viewBox.baseVal;
    const tall = Math.max(LEAST_ZOOM, (0.7 * window.innerHeight - 4) / height);
    scale(Math.min(1, tall, (drawing.clientWidth - 4) / width) / zoom);
  };
  for (const choice of [parameters, fold]) choice.addEventListener("change", redraw);
  redraw();
  requestAnimationFrame(fit);
  const button = (label, words, action) => h("button", { type: "button", "aria-label": words, onclick: action }, label);
  return h(
    "div",
    {},
    h(
      "div",
      { class: "tools" },
      h("label", { class: "check" }, parameters, " Draw parameters"),
      h("label", { class: "check", hidden: !repeats.length }, fold, " Fold repeated blocks"),
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

function isParameter(node) {
  return node.kind === "auxiliary" || (node.kind === "argument" && PARAMETER.test(node.name));
}

/** Which node is drawn for each: the one in the first of the blocks that are alike. */
function folding(nodes, repeats) {
  const before = nodes.map((_, i) => i);
  for (const [first, ...others] of repeats) for (const block of others) block.forEach((i, at) => (before[i] = first[at]));
  const standIn = (i) => (before[i] === i ? i : standIn(before[i]));
  const behind = nodes.map(() => []);
  nodes.forEach((node, i) => behind[standIn(i)].push(node));
  // A variable is drawn where something drawn reads it.
  const readers = nodes.map(() => []);
  nodes.forEach((node, i) => node.inputs.forEach(([from]) => readers[from].push(i)));
  const seen = (i) => standIn(i) === i && (nodes[i].op !== null || !readers[i].length || readers[i].some((to) => standIn(to) === to));
  // The frames: what is drawn of each first block, where that is more than one box.
  const blocks = (position) =>
    repeats
      .map((alike) => ({ members: new Set(alike[0].filter((i) => position.has(i)).map((i) => position.get(i))), label: `× ${alike.length}` }))
      .filter(({ members }) => members.size > 1);
  return { standIn, seen, blocks, alike: (node) => behind[nodes.indexOf(node)] };
}

function draw(nodes, heads, { standIn, seen, blocks, alike }, withParameters, onChoose) {
  const drawn = nodes.map((node, i) => i).filter((i) => seen(i) && (withParameters || !isParameter(nodes[i])));
  if (drawn.length > MOST) {
    return h("p", { class: "note" }, `${drawn.length} nodes are too many to draw; they are in the table below.`);
  }
  const position = new Map(drawn.map((i, at) => [i, at]));
  const outputs = new Set(heads.map(([i]) => standIn(i)));
  const boxes = drawn.map((i) => box(nodes[i], alike(nodes[i]).length));
  const edges = [];
  for (const i of drawn) {
    for (const from of new Set(nodes[i].inputs.map(([input]) => standIn(input)))) {
      if (position.has(from) && from < i) edges.push([position.get(from), position.get(i)]);
    }
  }
  const placed = framed(boxes, edges, blocks(position));
  const marks = drawn.map((i, at) => nodeMark(nodes[i], boxes[at], placed.places[at], outputs.has(i)));
  roam(marks, edges, placed, drawn.map((i) => nodes[i]), onChoose);
  const shown = nodes.filter((node) => node.op !== null).length;
  return svg(
    "svg",
    {
      viewBox: `0 0 ${Math.ceil(placed.width)} ${Math.ceil(placed.height)}`,
      width: placed.width,
      height: placed.height,
      role: "group",
      "aria-label": `${shown} operators from ${inputsOf(nodes)} to ${heads.map(([i]) => nodes[i].name).join(", ")}`,
    },
    placed.frames.map(frameMark),
    svg("g", { class: "edges" }, placed.lines.map(({ points }) => svg("path", { d: curve(points) }))),
    marks.map((mark) => mark.node),
  );
}

const inputsOf = (nodes) =>
  nodes.filter((node) => node.op === null && !isParameter(node)).map((node) => node.name).join(", ");

function box(node, times) {
  const title = `${node.op ?? node.name}${times > 1 ? ` ×${times}` : ""}`;
  const name = node.op === null ? "" : node.name;
  const size = shape(node.outputs[0].shape);
  const width = Math.max(title.length * 7.6, name.length * 6.4, size.length * 6.6, 56) + 22;
  return { title, name, size, width, height: name ? 54 : 38, times };
}

function nodeMark(node, { title, name, size, width, height, times }, { x, y }, isOutput) {
  const kind = node.op === null ? (isParameter(node) ? "parameter" : "input") : (KINDS.find(([, names]) => names.test(node.op)) ?? ["other"])[0];
  const lines = [title, name, size].filter(Boolean);
  const words = `${title}${name ? ` ${name}` : ""}, ${size}${node.outputs[0].datatype ? ` ${node.outputs[0].datatype}` : ""}`;
  const mark = svg(
    "g",
    {
      class: `node ${kind}${isOutput ? " output" : ""}`,
      transform: `translate(${(x - width / 2).toFixed(1)} ${(y - height / 2).toFixed(1)})`,
      tabindex: "-1",
      role: "button",
      "aria-label": words,
    },
    times > 1 ? svg("rect", { x: 5, y: 5, width, height, rx: 7 }) : "",
    svg("rect", { width, height, rx: 7 }),
    lines.map((line, i) =>
      svg("text", { x: width / 2, y: 16 + i * 15, class: i === 0 ? "title" : i === lines.length - 1 ? "size" : "name" }, line),
    ),
  );
  return { node: mark };
}

function frameMark({ x, y, width, height, label }) {
  return svg(
    "g",
    { class: "frame", transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, "aria-hidden": "true" },
    svg("rect", { width, height, rx: 10 }),
    svg("text", { x: 10, y: 16 }, label),
  );
}

/** One node is in the order of tabs; arrow keys go to its neighbours. */
function roam(marks, edges, placed, nodes, onChoose) {
  if (!marks.length) return;
  const neighbour = (at, key) => {
    if (key === "ArrowDown") return edges.find(([from]) => from === at)?.[1];
    if (key === "ArrowUp") return edges.find(([, to]) => to === at)?.[0];
    const beside = marks
      .map((_, i) => i)
      .filter((i) => Math.abs(placed.places[i].y - placed.places[at].y) < BESIDE && (key === "ArrowLeft" ? placed.places[i].x < placed.places[at].x : placed.places[i].x > placed.places[at].x));
    beside.sort((a, b) => Math.abs(placed.places[a].x - placed.places[at].x) - Math.abs(placed.places[b].x - placed.places[at].x));
    return beside[0];
  };
  let current = 0;
  const choose = (at) => {
    marks[current].node.setAttribute("tabindex", "-1");
    current = at;
    marks[at].node.setAttribute("tabindex", "0");
    onChoose(nodes[at]);
  };
  marks[0].node.setAttribute("tabindex", "0");
  marks.forEach(({ node }, at) => {
    node.addEventListener("focus", () => choose(at));
    node.addEventListener("click", () => node.focus());
    node.addEventListener("keydown", (event) => {
      if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      const next = neighbour(at, event.key);
      if (next !== undefined) marks[next].node.focus();
    });
  });
}

function curve(points) {
  return points
    .map((point, i) => {
      if (i === 0) return `M${point.x.toFixed(1)} ${point.y.toFixed(1)}`;
      const before = points[i - 1];
      const middle = ((before.y + point.y) / 2).toFixed(1);
      return `C${before.x.toFixed(1)} ${middle} ${point.x.toFixed(1)} ${middle} ${point.x.toFixed(1)} ${point.y.toFixed(1)}`;
    })
    .join("");
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
