// A line of the last two minutes: small, without axes; its label says the latest value to who cannot see it.

import { h, svg, write } from "./dom.js";

const WIDTH = 240;
const HEIGHT = 48;
const LENGTH = 120;

/** A figure: its name, its value now, and its course. update(values, text): numbers, oldest first, and the last in words. */
export function figure(title, { course = true } = {}) {
  const value = h("dd", { class: "value" }, "–");
  const area = svg("path", { class: "area" });
  const line = svg("path", { class: "line" });
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true", class: "course" },
    area,
    line,
  );
  return {
    node: h("div", { class: "figure" }, h("dt", {}, title), value, course && h("dd", { class: "picture" }, picture)),
    update(values, text) {
      write(value, text);
      if (!course) return;
      const points = values.slice(-LENGTH);
      const top = Math.max(...points, 1e-9) * 1.08;
      const step = WIDTH / (Math.max(points.length, LENGTH / 4) - 1);
      const start = WIDTH - (points.length - 1) * step;
      const path = points
        .map((y, i) => `${i ? "L" : "M"}${(start + i * step).toFixed(1)} ${(HEIGHT - 1 - (y / top) * (HEIGHT - 4)).toFixed(1)}`)
        .join("");
      line.setAttribute("d", path);
      area.setAttribute("d", points.length > 1 ? `${path}L${WIDTH} ${HEIGHT}L${start.toFixed(1)} ${HEIGHT}Z` : "");
    },
  };
}

/** Figures side by side. */
export function figures(...parts) {
  return h("dl", { class: "figures" }, parts.map((part) => part.node));
}

/** A bar of how much is in use. */
export function bar(title) {
  const meter = h("meter", { min: "0", "aria-label": title });
  const text = h("span", { class: "amount" });
  return {
    node: h("div", { class: "bar" }, h("span", { class: "name" }, title), text, meter),
    update(used, whole, words) {
      meter.max = whole || 1;
      meter.high = 0.9 * (whole || 1);
      meter.value = used;
      write(text, words);
    },
  };
}
