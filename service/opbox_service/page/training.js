// What a session's program reports of its training: a plot for each metric, with the curves of training and validation.

import { call, path, PATHS } from "./api.js";
import { h, section, write } from "./dom.js";
import { plot } from "./plot.js";

const KINDS = ["Train", "Validation"];
/** Milliseconds between two readings of whole curves; in between the events' latest points are added to them. */
const WHOLE_MS = 5000;

/** The metric and the curve that a reported name means: Train-accuracy is the curve Train of accuracy. */
function parts(name) {
  const kind = KINDS.find((word) => name.startsWith(`${word}-`));
  return kind ? [name.slice(kind.length + 1), kind] : [name, name];
}

/** The section for a session. update(session) with what the events tell of it; load() for one that has ended. */
export function training(id) {
  const note = h("p", { class: "note", role: "status" }, "Nothing has been reported yet: fit reports its metrics.");
  const plots = h("div", { class: "plots" });
  const drawn = new Map();
  let curves = new Map();
  let reported = 0;
  let asked = -Infinity;
  let asking = false;

  async function load() {
    if (asking) return null;
    asking = true;
    asked = performance.now();
    try {
      const record = await call("GET", path(PATHS.metrics, { session: id }));
      curves = new Map(record.curves.map((curve) => [curve.name, curve]));
      draw();
      return record;
    } catch (error) {
      write(note, error.message);
      return null;
    } finally {
      asking = false;
    }
  }

  function draw() {
    const metrics = new Map();
    for (const [name, curve] of curves) {
      const [metric, kind] = parts(name);
      if (!metrics.has(metric)) metrics.set(metric, []);
      metrics.get(metric).push({ ...curve, name: kind });
    }
    for (const [metric, series] of metrics) {
      if (!drawn.has(metric)) {
        drawn.set(metric, plot(metric));
        plots.append(drawn.get(metric).node);
      }
      drawn.get(metric).update(series);
    }
    note.hidden = metrics.size > 0;
  }

  return {
    node: section("Training", note, plots),
    load,
    update(session, you) {
      if (session.owner !== you.owner) {
        write(note, `What it reports is shown to its owner, ${session.owner}.`);
        return;
      }
      if (session.reported === reported) return;
      const first = reported === 0;
      reported = session.reported;
      for (const [name, point] of Object.entries(session.latest)) {
        const curve = curves.get(name);
        if (!curve || point.time <= curve.times.at(-1)) continue;
        curve.times.push(point.time);
        curve.steps.push(point.step);
        curve.epochs.push(point.epoch);
        curve.values.push(point.value);
      }
      if (first || performance.now() - asked > WHOLE_MS) load();
      else draw();
    },
  };
}
