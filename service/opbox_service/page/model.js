// One version of a served model: its traffic, its inputs and outputs, a form to try it, and its network.

import { call, path, PATHS } from "./api.js";
import { bar, figure, figures } from "./chart.js";
import { h, keyed, section, table, write } from "./dom.js";
import { bytes, count, ms, rate, shape } from "./format.js";
import { modelForm } from "./model_form.js";
import { actions, callers } from "./models.js";
import { networkView } from "./network.js";
import { tell } from "./session.js";
import { courseOf, models } from "./traffic.js";

export function modelView(name, version) {
  const requests = figure("Requests per second");
  const median = figure("Median of the latest 1,000");
  const tail = figure("99% answered within");
  const examples = figure("Examples a run");
  const facts = h("dl", { class: "facts" });
  const gone = h("p", { class: "note", role: "status" }, "Reading the model…");
  const trouble = h("p", { class: "error", role: "alert" });
  const buttons = h("div", {});
  const sizes = h("div", { class: "bars" });
  const updateSizes = keyed(sizes, ({ title }) => {
    const one = bar(title);
    return { node: one.node, update: ({ runs, all }) => one.update(runs, all, `${count(runs)} of ${count(all)} runs`) };
  });
  const none = h("p", { class: "note" }, "No runs yet.");
  const tensors = tensorTable();
  const form = h("div", {});
  const network = h("div", {});
  const note = h("p", { class: "note", role: "status" });
  const parts = [section("Inputs and outputs", tensors.node), section("Runs by number of examples", none, sizes), section("Try it", form), section("Network", note, network)];
  const [inputsPart, sizesPart, tryPart, networkPart] = parts;
  let shown = ""; // the state and load that the network and the form are of
  let loads = 0;
  let before = 0;
  let drawn = "";
  let now = 0;
  let you = null;
  const again = async () => {
    loads += 1;
    draw(await models(now, true));
  };

  function draw({ rows, trouble: sentence }) {
    if (rows === null) {
      if (sentence) write(gone, sentence);
      return;
    }
    const row = rows.find((one) => one.name === name && one.version === version);
    if (!row) {
      write(gone, "This version is not served any more, or not to you.");
      for (const part of parts) part.hidden = true;
      buttons.replaceChildren();
      drawn = shown = "";
      return;
    }
    if (row.requests < before) loads += 1; // it has been loaded again: its figures began anew
    before = row.requests;
    write(gone, row.reason || sentence || (row.state === "READY" ? "" : `It is ${row.state.toLowerCase()}.`));
    const course = courseOf(row);
    requests.update(course.rates, rate(course.rates.at(-1)));
    median.update(course.medians, ms(row.p50_ms));
    tail.update(course.tails, ms(row.p99_ms));
    examples.update(course.sizes, course.sizes.at(-1) ? course.sizes.at(-1).toFixed(1) : "–");
    tell(facts, {
      State: row.state,
      ...(row.owner && { Owner: row.owner }),
      ...((row.owner || row.callers) && { "May call": callers(row) }),
      Device: row.device ?? "–",
      Size: bytes(row.bytes),
      Requests: count(row.requests),
      Failed: count(row.failed),
    });
    const all = Object.values(row.batches).reduce((sum, runs) => sum + runs, 0);
    none.hidden = all > 0;
    const listed = Object.entries(row.batches).map(([size, runs]) => ({ title: size === "1" ? "1 example" : `${size} examples`, runs, all }));
    updateSizes(listed, ({ title }) => title);
    const administers = you.scopes.includes("admin");
    if (drawn !== `${row.state} ${administers}`) {
      drawn = `${row.state} ${administers}`;
      buttons.replaceChildren(...(administers ? [actions(row, trouble, again)] : []));
    }
    sizesPart.hidden = false;
    networkPart.hidden = row.state !== "READY";
    inputsPart.hidden = tryPart.hidden = networkPart.hidden || !you.scopes.includes("run");
    if (shown !== `${row.state} ${loads}`) {
      shown = `${row.state} ${loads}`;
      if (row.state === "READY") describe(shown);
    }
  }

  async function describe(own) {
    const address = { model: name, version };
    try {
      const model = await call("GET", path(PATHS.modelNetwork, address));
      if (own !== shown) return;
      const rows = (list, kind) => list.map((tensor) => ({ ...tensor, kind }));
      tensors.update([...rows(model.inputs, "Input"), ...rows(model.outputs, "Output")]);
      form.replaceChildren(modelForm(model));
      const view = await networkView(model.network, (drawing) => path(PATHS.modelDrawing, { ...address, drawing }));
      if (own !== shown) return;
      network.replaceChildren(view);
      write(note, "");
    } catch (error) {
      if (own === shown) write(note, error.message);
    }
  }

  return {
    title: `${name} · Models`,
    node: h(
      "div",
      { class: "grid" },
      h("div", { class: "wide heading" }, h("h1", { tabindex: "-1" }, name, h("span", { class: "aliases" }, ` version ${version}`)), buttons),
      h("div", { class: "wide" }, trouble, gone, figures(requests, median, tail, examples), facts),
      inputsPart,
      sizesPart,
      h("div", { class: "wide" }, tryPart),
      h("div", { class: "wide" }, networkPart),
    ),
    async update(state) {
      now = state.time;
      you = state.you;
      draw(await models(now));
    },
  };
}

function tensorTable() {
  return table(
    "Inputs and outputs",
    [
      { title: "Name", header: true, cell: (row) => row.name },
      { title: "Kind", cell: (row) => row.kind },
      { title: "Shape", cell: (row) => shape(row.shape) },
      { title: "Type", cell: (row) => row.datatype },
    ],
    (row) => `${row.kind} ${row.name}`,
    "",
  );
}
