// A layered drawing of a graph without circles: layers by longest path, few crossings by barycentres, straight edges by
// isotonic regression of what each node would like its place to be.

const GAP = 26;
const EDGE_GAP = 12;
const LAYER_GAP = 38;
const SWEEPS = 10;

/** Places for nodes.

    nodes: [{ width, height, pin }], each after those it depends on, pin being "top" or "bottom" of what stands in a layer
    above or below all others; edges: [[from, to]] by position.
    Gives { width, height, places: [{ x, y }] of centres, lines: [[{ x, y }]] of each edge }. */
export function layered(nodes, edges) {
  const cells = nodes.map((node) => ({ ...node, above: [], below: [], weight: 1 }));
  assignLayers(cells, edges);
  const chains = edges.map(([from, to]) => chain(cells, from, to));
  const layers = [];
  for (const cell of cells) (layers[cell.layer] ??= []).push(cell);
  layers.forEach((layer) => layer.forEach((cell, i) => (cell.order = i)));
  reduceCrossings(layers);
  const width = assignX(layers);
  const height = assignY(layers);
  return {
    width,
    height,
    places: nodes.map((_, i) => ({ x: cells[i].x, y: cells[i].y })),
    lines: chains.map((cellsOf) => cellsOf.map(({ x, y }) => ({ x, y }))),
  };
}

function assignLayers(cells, edges) {
  const into = cells.map(() => []);
  const out = cells.map(() => []);
  for (const [from, to] of edges) {
    into[to].push(from);
    out[from].push(to);
  }
  const topmost = cells.some((cell) => cell.pin === "top") ? 1 : 0;
  cells.forEach((cell, i) => {
    const least = cell.pin === "top" ? 0 : topmost;
    cell.layer = Math.max(least - 1, ...into[i].map((from) => cells[from].layer)) + 1;
  });
  const inner = cells.filter((cell) => cell.pin !== "bottom").map((cell) => cell.layer);
  for (const cell of cells) if (cell.pin === "bottom") cell.layer = Math.max(...inner) + 1;
  // Then each as low as what it is for allows, unless more edges come in than go out: the steps of an unrolled network
  // would stand side by side otherwise, far above their users.
  for (let i = cells.length - 1; i >= 0; i--) {
    if (!cells[i].pin && out[i].length && out[i].length >= into[i].length) {
      cells[i].layer = Math.min(...out[i].map((to) => cells[to].layer)) - 1;
    }
  }
}

/** The cells that an edge goes through, with one of no size in each layer between. */
function chain(cells, from, to) {
  const way = [cells[from]];
  for (let layer = cells[from].layer + 1; layer < cells[to].layer; layer++) {
    const bend = { width: 2, height: 0, above: [], below: [], layer, weight: 4 };
    cells.push(bend);
    way.push(bend);
  }
  way.push(cells[to]);
  for (let i = 1; i < way.length; i++) {
    way[i - 1].below.push(way[i]);
    way[i].above.push(way[i - 1]);
  }
  return way;
}

function reduceCrossings(layers) {
  let best = crossings(layers);
  let bestLayers = layers.map((layer) => [...layer]);
  for (let sweep = 0; sweep < SWEEPS && best > 0; sweep++) {
    const down = sweep % 2 === 0;
    const ordered = down ? layers : [...layers].reverse();
    for (const layer of ordered) {
      for (const cell of layer) {
        const neighbours = down ? cell.above : cell.below;
        cell.wish = neighbours.length ? mean(neighbours.map((other) => other.order)) : cell.order;
      }
      layer.sort((a, b) => a.wish - b.wish);
      layer.forEach((cell, i) => (cell.order = i));
    }
    const now = crossings(layers);
    if (now < best) {
      best = now;
      bestLayers = layers.map((layer) => [...layer]);
    }
  }
  bestLayers.forEach((layer, i) => {
    layers[i].splice(0, layers[i].length, ...layer);
    layer.forEach((cell, position) => (cell.order = position));
  });
}

function crossings(layers) {
  let sum = 0;
  for (const layer of layers) {
    const ends = layer.flatMap((cell) => cell.below.map((other) => other.order).sort((a, b) => a - b));
    if (ends.length > 400) continue; // counting pairs would take longer than the drawing is worth
    for (let i = 0; i < ends.length; i++) for (let j = i + 1; j < ends.length; j++) if (ends[j] < ends[i]) sum += 1;
  }
  return sum;
}

function assignX(layers) {
  for (const layer of layers) {
    const offsets = offsetsOf(layer);
    layer.forEach((cell, i) => (cell.x = offsets[i] - offsets.at(-1) / 2));
  }
  // Down, up, …, and down at last: what has one predecessor is right below it.
  for (let pass = 0; pass < 11; pass++) {
    const down = pass % 2 === 0;
    const ordered = down ? layers : [...layers].reverse();
    for (const layer of ordered) {
      const wishes = layer.map((cell) => {
        const neighbours = down ? cell.above : cell.below;
        return neighbours.length ? mean(neighbours.map((other) => other.x)) : cell.x;
      });
      settle(layer, wishes);
    }
  }
  const left = Math.min(...layers.flat().map((cell) => cell.x - cell.width / 2));
  const right = Math.max(...layers.flat().map((cell) => cell.x + cell.width / 2));
  for (const cell of layers.flat()) cell.x += GAP - left;
  return right - left + 2 * GAP;
}

/** How far each centre is from the first, at the least; edges that pass by need less room than nodes. */
function offsetsOf(layer) {
  const offsets = [0];
  for (let i = 1; i < layer.length; i++) {
    const gap = layer[i].height && layer[i - 1].height ? GAP : EDGE_GAP;
    offsets.push(offsets[i - 1] + (layer[i - 1].width + layer[i].width) / 2 + gap);
  }
  return offsets;
}

/** The nearest places to the wishes that keep the order and the gaps (pool adjacent violators). */
function settle(layer, wishes) {
  const offsets = offsetsOf(layer);
  const pools = [];
  layer.forEach((cell, i) => {
    pools.push({ sum: (wishes[i] - offsets[i]) * cell.weight, weight: cell.weight, size: 1 });
    while (pools.length > 1 && level(pools.at(-2)) > level(pools.at(-1))) {
      const last = pools.pop();
      const before = pools.at(-1);
      before.sum += last.sum;
      before.weight += last.weight;
      before.size += last.size;
    }
  });
  let i = 0;
  for (const pool of pools) for (let k = 0; k < pool.size; k++, i++) layer[i].x = level(pool) + offsets[i];
}

const level = (pool) => pool.sum / pool.weight;

function assignY(layers) {
  let y = GAP;
  for (const layer of layers) {
    const height = Math.max(...layer.map((cell) => cell.height));
    for (const cell of layer) cell.y = y + height / 2;
    y += height + LAYER_GAP;
  }
  return y - LAYER_GAP + GAP;
}

function mean(numbers) {
  return numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
}
