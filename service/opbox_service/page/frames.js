// Places for a network some of whose boxes stand in frames: each frame is laid out by itself, then it is a box of what is
// around it. An edge that crosses a frame's border has a port there.

import { layered } from "./layout.js";

const HEADER = 20;

/** Places for boxes, edges and frames.

    boxes: [{ width, height }], each after those it depends on; edges: [[from, to]] by position; blocks: [{ members, label }]
    with the positions that stand in a frame, which lie within one another or apart.
    Gives { width, height, places: [{ x, y }] of centres, lines: [{ points, from, to }], frames: [{ x, y, width, height, label }]}. */
export function framed(boxes, edges, blocks) {
  const scopes = [...blocks].sort((a, b) => b.members.size - a.members.size).map((block) => ({ ...block, parent: null }));
  const within = (inner, outer) => inner !== outer && [...inner.members].every((i) => outer.members.has(i));
  scopes.forEach((scope, at) => (scope.parent = scopes.slice(0, at).reverse().find((other) => within(scope, other)) ?? null));
  try {
    const whole = layOut({ members: new Set(boxes.keys()), parent: null, outermost: true }, boxes, edges, scopes);
    return { ...whole, places: boxes.map((_, i) => whole.places.get(i)) };
  } catch (error) {
    // A frame that something outside stands in the middle of cannot be one box: then there are no frames.
    if (!(error instanceof Circle)) throw error;
    const flat = layered(boxes, edges);
    return { ...flat, lines: flat.lines.map((points, e) => ({ points, from: edges[e][0], to: edges[e][1] })), frames: [] };
  }
}

class Circle extends Error {}

function layOut(scope, boxes, edges, scopes) {
  const children = scopes.filter((other) => other.parent === (scope.outermost ? null : scope));
  const items = children.map((child) => ({ child, ...layOut(child, boxes, edges, scopes) }));
  const itemOf = new Map();
  items.forEach((item) => item.child.members.forEach((i) => itemOf.set(i, item)));
  for (const i of scope.members) {
    if (itemOf.has(i)) continue;
    const item = { node: i, width: boxes[i].width, height: boxes[i].height };
    items.push(item);
    itemOf.set(i, item);
  }
  // Ports: one for each box outside that is read within, and one for each within that is read outside.
  const ports = { in: new Map(), out: new Map() };
  const links = [];
  for (const [from, to] of edges) {
    const [inside, arrives] = [scope.members.has(from), scope.members.has(to)];
    if (!inside && !arrives) continue;
    if (!inside && !ports.in.has(from)) ports.in.set(from, { width: 2, height: 0, pin: "top" });
    if (!arrives && !ports.out.has(from)) ports.out.set(from, { width: 2, height: 0, pin: "bottom" });
    const start = inside ? itemOf.get(from) : ports.in.get(from);
    const end = arrives ? itemOf.get(to) : ports.out.get(from);
    const drawn = links.find((link) => link.start === start && link.end === end && link.from === from);
    if (start !== end && !drawn) links.push({ start, end, from, to });
  }
  const cells = sorted([...ports.in.values(), ...items, ...ports.out.values()], links);
  const at = new Map(cells.map((cell, i) => [cell, i]));
  const laid = layered(cells, links.map(({ start, end }) => [at.get(start), at.get(end)]));
  const [dx, dy] = scope.outermost ? [0, 0] : [0, HEADER];
  const places = new Map();
  const frames = [];
  const lines = [];
  const corner = (item) => {
    const { x, y } = laid.places[at.get(item)];
    return { x: x - item.width / 2 + dx, y: y - item.height / 2 + dy };
  };
  for (const item of items) {
    const { x, y } = corner(item);
    if (!item.child) {
      places.set(item.node, { x: x + item.width / 2, y: y + item.height / 2 });
      continue;
    }
    const moved = (point) => ({ x: point.x + x, y: point.y + y });
    frames.push({ x, y, width: item.width, height: item.height, label: item.child.label });
    frames.push(...item.frames.map((frame) => ({ ...frame, ...moved(frame) })));
    item.places.forEach((place, i) => places.set(i, moved(place)));
    lines.push(...item.lines.map((line) => ({ ...line, points: line.points.map(moved) })));
  }
  links.forEach(({ start, end, from, to }, l) => {
    const points = laid.lines[l].map(({ x, y }) => ({ x: x + dx, y: y + dy }));
    // At a frame the line ends at its port, and at a box at its border.
    const [first, last] = [points[0], points.at(-1)];
    if (start.child) first.x = corner(start).x + start.exits.get(from);
    if (end.child) last.x = corner(end).x + end.entries.get(from);
    first.y += start.height / 2;
    last.y -= end.height / 2;
    lines.push({ points, from: start.node ?? from, to: end.node ?? to });
  });
  const [width, height] = [laid.width, laid.height + dy];
  // A port's line goes on to the border.
  const entries = new Map([...ports.in].map(([from, port]) => [from, laid.places[at.get(port)].x]));
  const exits = new Map([...ports.out].map(([from, port]) => [from, laid.places[at.get(port)].x]));
  if (!scope.outermost) {
    for (const [from, port] of ports.in) {
      const { x, y } = laid.places[at.get(port)];
      lines.push({ points: [{ x, y: 0 }, { x, y: y + dy }], from, to: from });
    }
    for (const [from, port] of ports.out) {
      const { x, y } = laid.places[at.get(port)];
      lines.push({ points: [{ x, y: y + dy }, { x, y: height }], from, to: from });
    }
  }
  return { width, height, places, frames, lines, entries, exits };
}

/** Items in an order in which each comes after those it depends on. */
function sorted(items, links) {
  const order = [];
  const state = new Map();
  const before = new Map(items.map((item) => [item, []]));
  links.forEach(({ start, end }) => before.get(end).push(start));
  const visit = (item) => {
    if (state.get(item) === "done") return;
    if (state.get(item) === "open") throw new Circle();
    state.set(item, "open");
    before.get(item).forEach(visit);
    state.set(item, "done");
    order.push(item);
  };
  items.forEach(visit);
  return order;
}
