// A form that tries a served model: numbers, an image or a .npy file for each input, and what the model answers.

import { callWithBytes, path, PATHS } from "./api.js";
import { h, write } from "./dom.js";
import { shape as inWords } from "./format.js";
import { imageValues, layoutOf } from "./image.js";
import { readNpy } from "./npy.js";
import { asCurl, title } from "./operator.js";
import { bytesOf, isWhole, numbersOf } from "./tensor_bytes.js";
import { drawn, generate, normal, parseShape, parseValues, product, show, tensor } from "./values.js";

const SHOWN_CLASSES = 10;
const SHOWN_EXAMPLES = 8;
/** As many values are written into the field, and into the call for curl. */
const WRITTEN = 1000;
const MAX_RANDOM = 20_000_000;
/** How far the sum of probabilities may be from 1: half precision has three digits. */
const NEAR_ONE = 0.01;
const MEAN = "0.485, 0.456, 0.406";
const STD = "0.229, 0.224, 0.225";

/** The form for one version: { name, version, inputs, outputs, labels }. */
export function modelForm(model) {
  const fields = model.inputs.map(inputField);
  const trouble = h("p", { class: "error", role: "alert" });
  const results = h("div", { class: "results", "aria-live": "polite", "aria-label": "Answer", role: "region" });
  const button = h("button", { class: "main" }, "Run");
  const form = h(
    "form",
    { "aria-label": `Try ${model.name}` },
    fields.map((field) => field.node),
    h("p", { class: "note" }, "An input that is left empty gets random values."),
    h("div", { class: "actions" }, button),
    trouble,
    results,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    write(trouble, "");
    button.disabled = true;
    try {
      results.replaceChildren(...(await answer(model, fields.map((field) => field.tensor()))));
      results.scrollIntoView({ block: "nearest" });
    } catch (error) {
      results.replaceChildren();
      write(trouble, error.message);
    } finally {
      button.disabled = false;
    }
  });
  return form;
}

/** Run the model; what to show of its answer. */
async function answer(model, inputs) {
  const address = path(PATHS.infer, { model: model.name, version: model.version });
  const payloads = inputs.map((one) => bytesOf(one.name, one.datatype, one.data));
  const header = {
    inputs: inputs.map(({ name, shape, datatype }, i) => ({ name, shape, datatype, parameters: { binary_data_size: payloads[i].byteLength } })),
    parameters: { binary_data_output: true },
  };
  const began = performance.now();
  const { header: answered, payload } = await callWithBytes("POST", address, header, payloads);
  const took = performance.now() - began;
  let at = 0;
  const outputs = answered.outputs.map((output) => {
    const size = output.parameters?.binary_data_size ?? 0;
    const data = output.data ?? numbersOf(output.datatype, payload.slice(at, at + size));
    at += size;
    return { ...output, data };
  });
  const small = inputs.every((one) => one.data.length <= WRITTEN);
  return [
    h("h3", {}, "Answer"),
    h("p", { class: "note" }, `Answered in ${took.toFixed(1)} ms.`),
    ...outputs.map((output) => h("figure", {}, h("figcaption", {}, title(output)), contents(output, model.labels))),
    small && asCurl(address, { inputs: inputs.map((one) => ({ ...one, data: Array.from(one.data, plain) })) }),
  ].filter(Boolean);
}

/** A value as JSON has it. */
const plain = (value) => (typeof value === "bigint" ? Number(value) : value);

function contents(output, labels) {
  const rows = probabilities(output);
  if (rows === null) return h("pre", { tabindex: "0" }, show(output));
  return h(
    "div",
    {},
    rows.slice(0, SHOWN_EXAMPLES).map((row, i) => h("div", {}, rows.length > 1 && h("h4", {}, `Example ${i}`), classes(row, labels, `${output.name}, example ${i}`))),
    rows.length > SHOWN_EXAMPLES && h("p", { class: "note" }, `${rows.length - SHOWN_EXAMPLES} more examples are not shown.`),
    h("details", {}, h("summary", {}, "Numbers"), h("pre", { tabindex: "0" }, show(output))),
  );
}

/** The rows of an output where each is probabilities: two or more numbers from 0 to 1 whose sum is 1. Null for others. */
function probabilities({ shape, datatype, data }) {
  const size = shape.at(-1);
  if (!/^B?F/.test(datatype) || shape.length < 1 || shape.length > 2 || size < 2 || !data.length) return null;
  const rows = Array.from({ length: data.length / size }, (_, i) => data.slice(i * size, (i + 1) * size));
  const fits = (row) => row.every((value) => value >= 0 && value <= 1) && Math.abs(row.reduce((a, b) => a + b, 0) - 1) < NEAR_ONE;
  return rows.every(fits) ? rows : null;
}

/** The likeliest classes, with bars. */
function classes(row, labels, name) {
  const best = row.map((value, i) => ({ value, label: labels[i] ?? `class ${i}` })).sort((a, b) => b.value - a.value);
  return h(
    "ol",
    { class: "classes", "aria-label": name },
    best.slice(0, SHOWN_CLASSES).map(({ value, label }) =>
      h(
        "li",
        {},
        h("span", { class: "name" }, label),
        h("meter", { min: "0", max: "1", value: String(value), "aria-label": label }),
        h("span", { class: "amount" }, `${(100 * value).toFixed(value < 0.001 ? 4 : 1)}%`),
      ),
    ),
  );
}

/** The fields of one input. tensor() gives { name, shape, datatype, data }, or an Error. */
function inputField({ name, datatype, shape: modelShape }, position) {
  const id = `model-input-${position}`;
  const text = (dims) => (dims.length ? dims.join(", ") : "()");
  const first = text(modelShape.map((length) => Math.max(1, length)));
  const shape = h("input", { id: `${id}-shape`, type: "text", value: first, spellcheck: "false", autocomplete: "off" });
  const values = h("textarea", { id: `${id}-values`, rows: "3", placeholder: "[[1, 2], [3, 4]]", spellcheck: "false" });
  const file = h("input", { id: `${id}-file`, type: "file", accept: ".npy,image/*" });
  const note = h("p", { class: "note", role: "status" });
  const trouble = h("p", { class: "error", role: "alert" });
  const picture = pictureFields(id, name, datatype, modelShape);
  let source = null; // { shape, values } of a file, or of many random numbers
  let image = null;
  let readings = 0;

  const clear = () => {
    source = image = null;
    readings += 1;
    picture.node.hidden = true;
    write(note, "");
    write(trouble, "");
  };
  const take = (dims, data, words) => {
    source = { shape: dims, values: data };
    shape.value = text(dims);
    values.value = "";
    write(note, `${words}: ${inWords(dims)}`);
  };
  const attempt = async (action) => {
    write(trouble, "");
    try {
      await action();
    } catch (error) {
      source = null;
      write(note, "");
      write(trouble, error.message);
    }
  };
  const readImage = () =>
    attempt(async () => {
      const own = ++readings;
      const pixels = await imageValues(name, image, picture.settings());
      if (own !== readings) return; // something else has been chosen meanwhile
      if (isWhole(datatype)) pixels.values.forEach((value, i) => (pixels.values[i] = Math.round(value)));
      take(pixels.shape, pixels.values, `${image.name}, ${pixels.size.join(" × ")} pixels`);
      picture.show(image.name, pixels.shape);
    });
  const fill = () => {
    const dims = parseShape(shape.value);
    if (dims === null || dims.some((length) => length < 0)) throw new Error(`${name}: expected a shape to fill, got ${shape.value.trim() || "none"}`);
    const size = product(dims);
    if (size > MAX_RANDOM) throw new Error(`${name}: expected at most ${MAX_RANDOM} random values, got ${size}: use a .npy file`);
    const whole = isWhole(datatype) || datatype === "BOOL";
    if (size <= WRITTEN) {
      values.value = whole ? drawn({ shape: dims, datatype, kind: "int", low: 0, high: 1 }) : generate("random", dims);
    } else take(dims, Float32Array.from({ length: size }, whole ? () => Math.round(Math.random()) : normal), "Random values");
  };

  file.addEventListener("change", () => {
    const [chosen] = file.files;
    clear();
    if (!chosen) return;
    if (/\.npy$/i.test(chosen.name)) {
      attempt(async () => {
        const array = readNpy(chosen.name, await chosen.arrayBuffer());
        take(array.shape, array.values, `${chosen.name}, ${array.dtype}`);
      });
    } else {
      image = chosen;
      picture.node.hidden = false;
      readImage();
    }
  });
  picture.node.addEventListener("change", readImage);
  values.addEventListener("input", () => {
    clear();
    file.value = "";
  });
  shape.addEventListener("input", () => {
    if (source && !image) source = { ...source, shape: null };
  });

  return {
    tensor() {
      if (trouble.textContent && !values.value.trim()) throw new Error(trouble.textContent);
      if (source === null && values.value.trim() === "") fill();
      if (source === null) {
        // Without a shape that fits, numbers in nested lists say it themselves.
        const nested = parseValues(values.value).shape;
        const stated = shape.value.trim() === first && nested?.length === modelShape.length ? "" : shape.value;
        return tensor(name, stated, values.value, datatype);
      }
      const dims = source.shape ?? parseShape(shape.value);
      if (product(dims) !== source.values.length) {
        throw new Error(`${name}: expected ${product(dims)} values for the shape ${text(dims)}, got ${source.values.length}`);
      }
      return { name, shape: dims, datatype, data: source.values };
    },
    node: h(
      "fieldset",
      { class: "input" },
      h("legend", {}, name, h("span", { class: "aliases" }, ` ${inWords(modelShape)} ${datatype}`)),
      h("div", { class: "field" }, h("label", { for: shape.id }, "Shape"), shape),
      h("div", { class: "field random" }, h("button", { type: "button", class: "small", "aria-label": `Fill ${name}: random`, onclick: () => attempt(refill) }, "random")),
      h("div", { class: "field values" }, h("label", { for: values.id }, "Numbers"), values),
      h("div", { class: "field values" }, h("label", { for: file.id }, "Or an image, or a .npy file"), file),
      picture.node,
      note,
      trouble,
    ),
  };

  function refill() {
    clear();
    file.value = "";
    fill();
  }
}

/** How an image becomes an input: fields that are shown once one is chosen. */
function pictureFields(id, name, datatype, modelShape) {
  const select = (key, label, options, value) => {
    const control = h("select", { id: `${id}-${key}` }, options.map(([code, words]) => h("option", { value: code }, words)));
    control.value = value;
    return { control, node: h("div", { class: "field" }, h("label", { for: control.id }, label), control) };
  };
  const list = (key, label, value) => {
    const control = h("input", { id: `${id}-${key}`, type: "text", value, spellcheck: "false", autocomplete: "off" });
    return { control, node: h("div", { class: "field", hidden: true }, h("label", { for: control.id }, label), control) };
  };
  const layout = select("layout", "Layout", [["first", "NCHW: channels first"], ["last", "NHWC: channels last"]], layoutOf(modelShape));
  const fit = select("fit", "Fit", [["stretch", "the whole image, stretched"], ["middle", "the middle of the image"]], "stretch");
  const scalings = [["unit", "0 to 1"], ["byte", "0 to 255"], ["standard", "(x − mean) ÷ std, of 0 to 1"]];
  const scaling = select("scaling", "Values", scalings, isWhole(datatype) ? "byte" : "unit");
  const mean = list("mean", "Mean by channel", MEAN);
  const std = list("std", "Standard deviation by channel", STD);
  const canvas = h("canvas", { role: "img", class: "preview", "aria-label": `What ${name} gets` });
  scaling.control.addEventListener("change", () => {
    mean.node.hidden = std.node.hidden = scaling.control.value !== "standard";
  });
  const numbers = (field, label) => {
    const { data } = parseValues(field.control.value) ?? { data: [] };
    if (!data.length) throw new Error(`${label}: expected numbers such as ${MEAN}, got none`);
    return data.map(Number);
  };
  return {
    node: h("div", { class: "picture-fields", hidden: true }, layout.node, fit.node, scaling.node, mean.node, std.node, canvas),
    settings: () => ({
      shape: modelShape,
      layout: layout.control.value,
      fit: fit.control.value,
      scaling: scaling.control.value,
      mean: numbers(mean, "mean"),
      std: numbers(std, "std"),
      canvas,
    }),
    show: (fileName, dims) => canvas.setAttribute("aria-label", `${fileName} as ${name} gets it, ${inWords(dims)}`),
  };
}
