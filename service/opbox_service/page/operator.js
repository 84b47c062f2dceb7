// A form that runs one operator: its parameters and inputs, what its shapes are, what it puts out, what its gradients are.
// It begins with the operator's preset (presets.json), which fits it: { attrs, inputs: { name: { shape, … } } }, or { why } there is none.

import { at, call, PATHS } from "./api.js";
import { h, write } from "./dom.js";
import { shape as inWords } from "./format.js";
import { graphOf, inputsOf } from "./graph.js";
import { DATATYPES, drawn, generate, laidOut, parseShape, show, tensor } from "./values.js";

/** What the first input of an operator begins with that has no preset: one of a package or a file of the user's. */
const FIRST = { shape: [2, 3], values: [1, -2, 3, -4, 5, -6] };

/** What an operator is, in a sentence that does not begin with its name. */
export function summary(operator) {
  const start = `${operator.name}: `;
  const text = operator.doc.startsWith(start) ? operator.doc.slice(start.length) : operator.doc;
  return /^[a-z]+ [a-z]/.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
}

export function operatorForm(operator, preset = null) {
  const params = Object.entries(operator.params.properties ?? {}).map(([name, schema]) =>
    parameter(name, schema, (operator.params.required ?? []).includes(name), preset?.attrs?.[name]),
  );
  const inputs = new Map();
  const inputBox = h("fieldset", { class: "inputs" }, h("legend", {}, "Inputs"));
  const training = h("input", { type: "checkbox", id: "is_train" });
  const trouble = h("p", { class: "error", role: "alert" });
  const results = h("div", { class: "results", "aria-live": "polite", "aria-label": "Results", role: "region" });
  const button = (label, action, main) =>
    h("button", { type: "button", class: main ? "main" : null, onclick: () => attempt(action) }, label);
  const buttons = [button("Infer shapes", inferShapes), button("Forward", () => run(false), true)];
  if (operator.differentiable) buttons.push(button("Backward", () => run(true)));

  const attrs = () => Object.fromEntries(params.map((one) => [one.name, one.text()]).filter(([, text]) => text !== ""));

  function arrange() {
    const wanted = inputsOf(operator, attrs());
    wanted.forEach((slot, position) => {
      const first = preset ? preset.inputs?.[slot.name] : inputs.size === 0 ? FIRST : null;
      if (!inputs.has(slot.name)) inputs.set(slot.name, input(slot, first));
      const node = inputs.get(slot.name).node;
      if (inputBox.children[position + 1] !== node) inputBox.insertBefore(node, inputBox.children[position + 1] ?? null);
    });
    [...inputBox.children].slice(wanted.length + 1).forEach((node) => node.remove());
    if (!wanted.length) inputBox.append(h("p", { class: "note" }, "It takes none."));
    return wanted.map((slot) => inputs.get(slot.name));
  }

  async function attempt(action) {
    write(trouble, "");
    buttons.forEach((one) => (one.disabled = true));
    try {
      await action();
      results.scrollIntoView({ block: "nearest" });
    } catch (error) {
      results.replaceChildren();
      write(trouble, error.message);
    } finally {
      buttons.forEach((one) => (one.disabled = false));
    }
  }

  async function shapes(partial) {
    const entries = arrange().map((one) => [one.name, one.shape()]).filter(([, dims]) => dims !== null);
    const body = { graph: graphOf(operator, attrs()), shapes: Object.fromEntries(entries), partial };
    return call("POST", PATHS.inferShape, body);
  }

  async function inferShapes() {
    const answer = await shapes(true);
    const rows = [
      ...answer.arg_names.map((name, i) => ["Input", name, answer.arg_shapes[i]]),
      ...answer.aux_names.map((name, i) => ["State", name, answer.aux_shapes[i]]),
      ...answer.out_names.map((name, i) => ["Output", name, answer.out_shapes[i]]),
    ];
    results.replaceChildren(
      h("h3", {}, answer.complete ? "Shapes" : "Shapes, as far as they follow"),
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, ["", "Name", "Shape"].map((title) => (title ? h("th", { scope: "col" }, title) : h("td", {}))))),
        h("tbody", {}, rows.map(([kind, name, dims]) => h("tr", {}, h("td", {}, kind), h("th", { scope: "row" }, name), h("td", {}, inWords(dims))))),
      ),
    );
  }

  /** The tensors; inputs that were left empty get the shape that follows, and random values that everybody can see. */
  async function tensors() {
    const list = arrange();
    if (list.some((one) => one.empty())) {
      const answer = await shapes(false);
      const known = new Map([...answer.arg_names, ...answer.aux_names].map((name, i) => [name, [...answer.arg_shapes, ...answer.aux_shapes][i]]));
      list.filter((one) => one.empty()).forEach((one) => one.fill(known.get(one.name)));
    }
    return list.map((one) => one.tensor());
  }

  async function run(backward) {
    const body = { graph: graphOf(operator, attrs()), inputs: await tensors(), parameters: { is_train: training.checked || backward } };
    if (backward) {
      const known = await call("POST", PATHS.inferShape, {
        graph: body.graph,
        shapes: Object.fromEntries(body.inputs.map((one) => [one.name, one.shape])),
      });
      const type = body.inputs.find((one) => one.datatype.startsWith("FP"))?.datatype ?? "FP32";
      known.out_names.forEach((name, i) => {
        body.inputs.push(tensor(`head_grad:${name}`, known.out_shapes[i].join(", ") || "()", generate("ones", known.out_shapes[i]), type));
      });
    }
    const address = backward ? PATHS.backward : PATHS.forward;
    const began = performance.now();
    const answer = await call("POST", address, body);
    const took = performance.now() - began;
    const note = backward ? "Gradients of the sum of all outputs: every head gradient is 1." : "";
    results.replaceChildren(
      h("h3", {}, backward ? "Gradients and outputs" : "Outputs"),
      h("p", { class: "note" }, `Answered in ${took.toFixed(1)} ms. ${note}`),
      ...answer.outputs.map((output) => h("figure", {}, h("figcaption", {}, title(output)), h("pre", { tabindex: "0" }, show(output)))),
      asCurl(address, body),
    );
  }

  params.forEach((one) => one.node.addEventListener("input", arrange));
  arrange();
  const heading = h("h2", { id: "operator" }, operator.name);
  return h(
    "form",
    { class: "panel operator", "aria-labelledby": "operator", onsubmit: (event) => event.preventDefault() },
    heading,
    operator.aliases.length ? h("p", { class: "note" }, `Also called ${operator.aliases.join(", ")}.`) : "",
    h("p", { class: "doc" }, summary(operator)),
    params.length ? h("fieldset", { class: "params" }, h("legend", {}, "Parameters"), params.map((one) => one.node)) : "",
    inputBox,
    h("p", { class: "note" }, "Inputs that are left empty get the shape that follows from the others, and random values."),
    h("label", { class: "check" }, training, " Training mode (always on backward)"),
    preset?.why ? h("p", { class: "note why" }, preset.why) : h("div", { class: "actions" }, buttons),
    trouble,
    results,
  );
}

export function title(output) {
  const name = output.name.startsWith("grad:") ? `gradient of ${output.name.slice(5)}` : output.name;
  return `${name}: ${inWords(output.shape)} ${output.datatype}`;
}

/** The same call for a terminal; the token stays in the environment. */
export function asCurl(address, body) {
  const text = `curl ${at(address)} -H "Authorization: Bearer $OPBOX_TOKEN" -H "Content-Type: application/json" \\\n  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
  return h("details", {}, h("summary", {}, "The same call with curl"), h("pre", { tabindex: "0" }, text));
}

/** A field for one parameter; text() is what it says, "" for the default. */
function parameter(name, schema, required, preset) {
  const id = `param-${name}`;
  const kinds = [schema, ...(schema.anyOf ?? [])];
  const choices = kinds.find((kind) => kind.enum)?.enum;
  const type = kinds.map((kind) => kind.type).find((kind) => kind && kind !== "null");
  const usual = required ? "" : inPython(schema.default);
  let control;
  if (choices || type === "boolean") {
    const options = (choices ?? [true, false]).map(inPython);
    control = h("select", { id }, h("option", { value: "" }, required ? "choose one" : `default: ${usual}`), options.map((text) => h("option", { value: text }, text)));
  } else {
    const numeric = type === "integer" || type === "number";
    control = h("input", {
      id,
      type: "text",
      inputmode: numeric ? "decimal" : null,
      placeholder: required ? "" : usual,
      spellcheck: "false",
      autocomplete: "off",
    });
  }
  if (required) control.setAttribute("aria-required", "true");
  control.setAttribute("aria-describedby", `${id}-doc`);
  const start = preset ?? (required && !choices ? starting(schema, type) : "");
  if (start) control.value = start;
  return {
    name,
    text: () => control.value.trim(),
    node: h(
      "div",
      { class: "field" },
      h("label", { for: id }, name, required ? h("span", { class: "required" }, " required") : ""),
      control,
      h("p", { class: "doc", id: `${id}-doc` }, schema.description ?? ""),
    ),
  };
}

/** Something to begin with for what has neither default nor preset. */
function starting(schema, type) {
  if (type === "integer") return String(Math.max(2, schema.minimum ?? 2));
  return type === "number" ? "1.0" : "";
}

function inPython(value) {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `(${value.join(", ")}${value.length === 1 ? "," : ""})`;
  return String(value);
}

/** The fields of one input, which begin with a preset's { shape, datatype, values or kind, low, high }; empty where it follows. */
function input(slot, preset) {
  const id = `input-${slot.name}`;
  const inText = (dims) => (dims.length ? dims.join(", ") : "()");
  const first = preset ? inText(preset.shape) : "";
  const shape = h("input", { id: `${id}-shape`, type: "text", value: first, placeholder: "follows", spellcheck: "false", autocomplete: "off" });
  const type = h("select", { id: `${id}-type` }, DATATYPES.map((name) => h("option", {}, name)));
  const values = h("textarea", { id: `${id}-values`, rows: "3", placeholder: "[[1, 2], [3, 4]]", spellcheck: "false" });
  if (preset) {
    type.value = preset.datatype ?? "FP32";
    values.value = preset.values ? laidOut(preset.values, preset.shape) : drawn(preset);
  }
  const trouble = h("p", { class: "error", role: "alert" });
  const fill = (kind) => {
    write(trouble, "");
    try {
      const dims = parseShape(shape.value);
      if (dims === null) throw new Error(`${slot.name}: expected a shape to fill, got none`);
      values.value = generate(kind, dims);
    } catch (error) {
      write(trouble, error.message);
    }
  };
  const filler = (kind, label) =>
    h("button", { type: "button", class: "small", "aria-label": `Fill ${slot.name}: ${label}`, onclick: () => fill(kind) }, label);
  return {
    name: slot.name,
    shape: () => parseShape(shape.value) ?? (values.value.trim() ? tensor(slot.name, "", values.value, type.value).shape : null),
    empty: () => values.value.trim() === "",
    fill(dims) {
      shape.value = inText(dims);
      values.value = generate("random", dims);
    },
    tensor: () => tensor(slot.name, shape.value, values.value, type.value),
    node: h(
      "fieldset",
      { class: "input" },
      h("legend", {}, slot.name, slot.aux ? h("span", { class: "aliases" }, " state") : ""),
      slot.doc ? h("p", { class: "doc" }, slot.doc) : "",
      h("div", { class: "field" }, h("label", { for: shape.id }, "Shape"), shape),
      h("div", { class: "field" }, h("label", { for: type.id }, "Type"), type),
      h("div", { class: "field values" }, h("label", { for: values.id }, "Values"), values),
      h("div", { class: "fill" }, filler("random", "random"), filler("ones", "ones"), filler("count", "0, 1, 2, …")),
      trouble,
    ),
  };
}
