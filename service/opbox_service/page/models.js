// The models that the server serves: their state, their traffic, and how to load and unload them.

import { h, section, table, write } from "./dom.js";
import { bytes, count, ms } from "./format.js";
import { ask } from "./question.js";
import { load, models, unload } from "./traffic.js";

const HOW =
  "No model is served yet. Put a model's NAME-symbol.json and .params, or its .onnx file, into the folder models/NAME, and start " +
  "the server with opbox serve --models models.";

/** What a run took: "1: 20, 8: 5" for 20 runs of one example and 5 of eight. */
const runsBySize = (row) =>
  Object.entries(row.batches)
    .map(([size, number]) => `${size}: ${count(number)}`)
    .join(", ") || "–";

/** Who may call a model, beside its owner. */
export const callers = (row) => (row.callers ? row.callers.join(", ") || "the owner alone" : "everyone");

export function modelsView() {
  const trouble = h("p", { class: "error", role: "alert" });
  const place = h("div", {});
  const lost = h("p", { class: "error", role: "alert" });
  const empty = h("p", { class: "note", role: "status" }, "Reading the models…");
  let rows = null;
  let columns = "";
  let now = 0;
  let you = null;

  function draw({ rows: list, trouble: sentence }) {
    write(lost, sentence);
    if (list === null) {
      if (sentence) write(empty, "");
      return;
    }
    write(empty, list.length ? "" : HOW);
    place.hidden = list.length === 0;
    const administers = you.scopes.includes("admin");
    const owned = list.some((row) => row.owner || row.callers);
    if (columns !== `${administers} ${owned}`) {
      columns = `${administers} ${owned}`;
      rows = modelTable(owned, administers ? (row) => actions(row, trouble, again) : null);
      place.replaceChildren(rows.node);
    }
    rows.update(list);
  }

  const again = async () => draw(await models(now, true));

  return {
    title: "Models",
    node: h("div", {}, h("h1", { class: "unseen", tabindex: "-1" }, "Models"), section("Served models", trouble, lost, empty, place)),
    async update(state) {
      now = state.time;
      you = state.you;
      draw(await models(now));
    },
  };
}

function modelTable(owned, buttons) {
  const address = (row) => `#/models/${encodeURIComponent(row.name)}/${encodeURIComponent(row.version)}`;
  const link = (row) => h("a", { href: address(row), "aria-label": `Model ${row.name}, version ${row.version}` }, row.name);
  return table(
    "Models",
    [
      { title: "Model", header: true, node: link },
      { title: "Version", number: true, cell: (row) => row.version },
      ...(owned ? [{ title: "Owner", cell: (row) => row.owner ?? "–" }, { title: "May call", cell: callers }] : []),
      { title: "State", cell: (row) => (row.reason ? `${row.state}: ${row.reason}` : row.state) },
      { title: "Device", cell: (row) => row.device ?? "–" },
      { title: "Size", number: true, cell: (row) => bytes(row.bytes) },
      { title: "Requests", number: true, cell: (row) => count(row.requests) },
      { title: "Failed", number: true, cell: (row) => count(row.failed) },
      { title: "Median", number: true, cell: (row) => ms(row.p50_ms) },
      { title: "99%", number: true, cell: (row) => ms(row.p99_ms) },
      { title: "Runs by size", cell: runsBySize },
      ...(buttons ? [{ title: "Action", node: buttons }] : []),
    ],
    // What can be done depends on the state: a row of another state is another row.
    (row) => `${row.name}/${row.version}/${row.state}`,
    "",
  );
}

/** Buttons that load, reload and unload a model; an error's sentence goes to `trouble`, `after` is called when one has been pressed. */
export function actions(row, trouble, after) {
  const button = (verb, danger, action) =>
    h("button", { type: "button", class: danger ? "small danger" : "small", "aria-label": `${verb} model ${row.name}`, onclick: action }, verb);
  const again = (verb) =>
    button(verb, false, async (event) => {
      const own = event.currentTarget;
      write(trouble, "");
      own.disabled = true;
      try {
        await load(row.name);
      } catch (error) {
        write(trouble, error.message);
      } finally {
        own.disabled = false;
        await after();
      }
    });
  const asked = () =>
    ask({
      title: `Unload ${row.name}?`,
      text: "All its versions stop serving: requests for them get an error until the model is loaded again. Its memory is freed.",
      action: "Unload",
      async onYes() {
        await unload(row.name);
        write(trouble, "");
        await after();
      },
    });
  const buttons = row.state === "READY" ? [again("Reload"), button("Unload", true, asked)] : row.state === "LOADING" ? [] : [again("Load")];
  return h("div", { class: "buttons" }, buttons);
}
