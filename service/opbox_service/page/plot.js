// A plot of curves over the steps of a training: axes, lines, a legend with the latest values, and the numbers in a table.

import { h, svg, write } from "./dom.js";
import { count } from "./format.js";

const NARROW = 280;
const WIDE = 900;
const HEIGHT = 250;
const LEFT = 58;
const RIGHT = 14;
const TOP = 12;
const BOTTOM = 34;
/** A curve of so few points has a dot at each. */
const DOTTED = 40;
const ROWS = 12;

/** A value as the legend and the table have it. */
export function number(value) {
  if (value === null || value === undefined) return "no number";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) return value.toExponential(2);
  return Number(value.toPrecision(4)).toString();
}

/** About `wanted` round numbers from low to high. */
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

function range(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - room, high + room];
}

/** A plot. update(series): [{ name, steps, epochs, values }], each in the order of its steps; null values are gaps. */
export function plot(title) {
  const id = `plot-${title.toLowerCase().replace(/\W+/g, "-")}`;
  const legend = h("ul", { class: "legend", "aria-label": `Latest values of ${title}` });
  const picture = svg("svg", { role: "img", class: "plot" });
  const readout = h("p", { class: "readout", "aria-hidden": "true" });
  const numbers = h("div", { class: "table", role: "region", tabindex: "0", "aria-label": `${title}: numbers` });
  const details = h("details", {}, h("summary", {}, "Numbers"), numbers);
  let shown = [];
  let toX = null;
  let width = 640;
  let cursor = null;

  details.addEventListener("toggle", () => details.open && numbers.replaceChildren(tableOf(title, shown)));
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    read(((event.clientX - box.left) / box.width) * width);
  });
  picture.addEventListener("pointerleave", () => {
    write(readout, "");
    cursor?.setAttribute("visibility", "hidden");
  });

  /** Say the values at a place of the picture. */
  function read(x) {
    if (!toX || !shown.some((one) => one.steps.length)) return;
    const near = shown.map((one) => nearest(one, x, toX)).filter((point) => point !== null);
    const closest = near.reduce((a, b) => (Math.abs(toX(b.step) - x) < Math.abs(toX(a.step) - x) ? b : a), near[0]);
    cursor.setAttribute("x1", toX(closest.step));
    cursor.setAttribute("x2", toX(closest.step));
    cursor.setAttribute("visibility", "visible");
    const epoch = closest.epoch === null ? "" : `, epoch ${closest.epoch}`;
    write(readout, `Step ${count(closest.step)}${epoch}: ${near.map((point) => `${point.name} ${number(point.value)}`).join(", ")}`);
  }

  function update(series) {
    shown = series;
    const steps = series.flatMap((one) => one.steps);
    const [low, high] = range(series.flatMap((one) => one.values));
    const first = Math.min(...steps, 0);
    const last = Math.max(...steps, first + 1);
    // As wide as it is shown, so that its letters have their size on a phone too.
    width = Math.max(NARROW, Math.min(WIDE, picture.clientWidth || width));
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    toX = (step) => LEFT + ((step - first) / (last - first)) * (width - LEFT - RIGHT);
    const toY = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    picture.setAttribute("aria-label", `${title} by step. ${series.map((one) => inWords(one)).join(" ")}`);
    picture.replaceChildren(
      ...ticks(low, high, 4).map((value) =>
        svg(
          "g",
          { class: "tick" },
          svg("line", { x1: LEFT, x2: width - RIGHT, y1: toY(value), y2: toY(value) }),
          svg("text", { x: LEFT - 8, y: toY(value) + 4, "text-anchor": "end" }, number(value)),
        ),
      ),
      ...ticks(first, last, width / 100)
        .filter(Number.isInteger)
        .map((step) =>
          svg("g", { class: "tick" }, svg("text", { x: toX(step), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, count(step))),
        ),
      ...series.map((one, i) => curve(one, i, toX, toY)),
      cursor,
    );
    legend.replaceChildren(
      ...series.map((one, i) =>
        h(
          "li",
          {},
          svg("svg", { viewBox: "0 0 26 10", class: "swatch", "aria-hidden": "true" }, svg("line", { x1: 1, x2: 25, y1: 5, y2: 5, class: `curve c${i % 4}` })),
          ` ${one.name} `,
          h("strong", {}, number(one.values.at(-1))),
        ),
      ),
    );
    if (details.open) numbers.replaceChildren(tableOf(title, series));
  }

  return {
    node: h(
      "figure",
      { class: "training-plot", "aria-labelledby": id },
      h("figcaption", {}, h("span", { id, class: "plot-title" }, title), legend),
      picture,
      readout,
      details,
    ),
    update,
  };
}

/** One curve: its line, and a dot at each point where there are few. */
function curve({ steps, values }, i, toX, toY) {
  let path = "";
  let drawing = false;
  const dots = [];
  values.forEach((value, k) => {
    if (value === null) {
      drawing = false;
      return;
    }
    const [x, y] = [toX(steps[k]).toFixed(1), toY(value).toFixed(1)];
    path += `${drawing ? "L" : "M"}${x} ${y}`;
    drawing = true;
    if (values.length <= DOTTED) dots.push(svg("circle", { cx: x, cy: y, r: 2.6 }));
  });
  return svg("g", { class: `curve c${i % 4}` }, svg("path", { d: path }), dots);
}

function inWords({ name, steps, values }) {
  if (!values.length) return "";
  return `${name}: ${number(values[0])} at step ${steps[0]}, ${number(values.at(-1))} at step ${steps.at(-1)}.`;
}

/** The point of a curve that lies nearest to a place of the picture. */
function nearest({ name, steps, epochs, values }, x, toX) {
  if (!steps.length) return null;
  let low = 0;
  let high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (toX(steps[middle]) < x) low = middle;
    else high = middle;
  }
  const k = Math.abs(toX(steps[low]) - x) <= Math.abs(toX(steps[high]) - x) ? low : high;
  return { name, step: steps[k], epoch: epochs[k], value: values[k] };
}

/** Some of the points, evenly spread, and the last. */
function tableOf(title, series) {
  const head = h("tr", {}, ["Step", "Epoch", "Curve", "Value"].map((text) => h("th", { scope: "col" }, text)));
  const rows = series.flatMap(({ name, steps, epochs, values }) => {
    const every = Math.max(1, Math.ceil(steps.length / ROWS));
    return steps
      .map((step, k) => ({ step, epoch: epochs[k], value: values[k], name, k }))
      .filter(({ k }) => k % every === 0 || k === steps.length - 1)
      .map((row) => h("tr", {}, [count(row.step), row.epoch ?? "–", row.name, number(row.value)].map((text) => h("td", {}, String(text)))));
  });
  return h("table", {}, h("caption", { class: "unseen" }, title), h("thead", {}, head), h("tbody", {}, rows));
}
