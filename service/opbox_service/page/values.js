// Tensors as people type them, and as they read them.

export const DATATYPES = ["FP32", "FP64", "FP16", "BF16", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL"];
const MAX_GENERATED = 100000;
const SHOWN = 400;
const WORDS = { nan: "NaN", inf: "Infinity", infinity: "Infinity", "-inf": "-Infinity", "-infinity": "-Infinity" };

/** The dimensions in a text such as "2, 3" or "(2, 3)"; null for an empty one; an Error that says what was expected. */
export function parseShape(text) {
  const plain = text.trim().replace(/^[([]|[)\]]$/g, "").replace(/,\s*$/, "");
  if (text.trim() === "") return null;
  if (plain.trim() === "") return [];
  return plain.split(/[,×x]/).map((part) => {
    if (!/^\s*-?\d+\s*$/.test(part)) throw new Error(`shape: expected whole numbers such as 2, 3, got "${text.trim()}"`);
    return Number(part);
  });
}

/** Values in a text: nested lists as [[1, 2], [3, 4]], or numbers with spaces or commas between. Gives { shape, data },
    shape null where only the numbers are known. */
export function parseValues(text) {
  const source = text.trim();
  if (source === "") return null;
  const tokens = source.match(/[[\](),]|[^\s[\](),]+/g) ?? [];
  const nested = /^[[(]/.test(source);
  let at = 0;
  const data = [];
  const read = () => {
    if (tokens[at] !== "[" && tokens[at] !== "(") {
      data.push(number(tokens[at]));
      at += 1;
      return [];
    }
    const close = tokens[at] === "[" ? "]" : ")";
    at += 1;
    let inner = null;
    let size = 0;
    while (at < tokens.length && tokens[at] !== close) {
      if (tokens[at] === ",") {
        at += 1;
        continue;
      }
      const shape = read();
      if (inner !== null && shape.join() !== inner.join()) throw new Error("values: expected lists of equal lengths, got others");
      inner = shape;
      size += 1;
    }
    if (at >= tokens.length) throw new Error(`values: expected a ${close} at the end, got none`);
    at += 1;
    return [size, ...(inner ?? [])];
  };
  if (nested) {
    const shape = read();
    if (at < tokens.length) throw new Error(`values: expected one list, got "${tokens[at]}" after it`);
    return { shape, data };
  }
  for (const token of tokens) if (token !== ",") data.push(number(token));
  return { shape: data.length === 1 ? [] : null, data };
}

function number(token) {
  const word = WORDS[String(token).toLowerCase()];
  if (word) return word;
  if (/^(true|false)$/i.test(token)) return /^true$/i.test(token) ? 1 : 0;
  const value = Number(token);
  if (token === undefined || token === "" || Number.isNaN(value)) throw new Error(`values: expected numbers, got "${token ?? "nothing"}"`);
  return value;
}

/** A tensor of the wire's from the texts of a form; null where there are no values. */
export function tensor(name, shapeText, valuesText, datatype) {
  const values = parseValues(valuesText);
  if (values === null) return null;
  const stated = parseShape(shapeText);
  const shape = stated ?? values.shape ?? [values.data.length];
  const size = product(shape);
  if (size !== values.data.length) {
    throw new Error(`${name}: expected ${size} values for the shape ${shape.join(", ") || "()"}, got ${values.data.length}`);
  }
  if (stated && values.shape && values.shape.length > 1 && values.shape.join() !== stated.join()) {
    throw new Error(`${name}: expected the shape ${stated.join(", ")}, got values of ${values.shape.join(", ")}`);
  }
  const data = datatype === "BOOL" ? values.data.map((value) => value !== 0) : values.data;
  return { name, shape, datatype, data };
}

/** A random number, normally distributed. */
export const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());

/** Values for a shape: "random" (normal), "ones", or "count" (0, 1, 2, …), written as a nested list. */
export function generate(kind, shape) {
  const size = product(shape);
  if (size > MAX_GENERATED) throw new Error(`values: expected at most ${MAX_GENERATED} to be generated here, got ${size}: use the client`);
  const values = Array.from({ length: size }, (_, i) => (kind === "count" ? i : kind === "ones" ? 1 : Number(normal().toFixed(3))));
  return laidOut(values, shape);
}

/** Values of a preset { shape, kind, low, high }: whole numbers ("int"), ones that all differ ("distinct"), or any between low and high. */
export function drawn({ shape, datatype, kind, low, high }) {
  if (low === undefined) return generate("random", shape);
  const size = product(shape);
  if (datatype === "BOOL") return laidOut(Array.from({ length: size }, () => Math.round(Math.random())), shape);
  if (kind === "distinct") return laidOut(shuffled(Array.from({ length: size }, (_, i) => i + low)), shape);
  const whole = kind === "int";
  const between = () => (whole ? low + Math.floor(Math.random() * (Math.floor(high) - low + 1)) : Number((low + Math.random() * (high - low)).toFixed(3)));
  return laidOut(Array.from({ length: size }, between), shape);
}

function shuffled(values) {
  for (let i = values.length - 1; i > 0; i--) {
    const j = Math.floor(Math.random() * (i + 1));
    [values[i], values[j]] = [values[j], values[i]];
  }
  return values;
}

/** Flat values as a nested list. */
export function laidOut(values, shape) {
  return nest(values, shape, (value) => value);
}

/** A tensor's values as nested lists, the middle left out where there are many. */
export function show({ shape, data }) {
  if (data.length <= SHOWN) return nest(data, shape, brief);
  return `${data.slice(0, SHOWN).map(brief).join(", ")}, … (${data.length - SHOWN} more)`;
}

function nest(values, shape, write) {
  let at = 0;
  const inner = (axis, indent) => {
    if (axis === shape.length) return String(write(values[at++]));
    const parts = Array.from({ length: shape[axis] }, () => inner(axis + 1, `${indent} `));
    return `[${parts.join(axis === shape.length - 1 ? ", " : `,\n${indent} `)}]`;
  };
  return inner(0, "");
}

function brief(value) {
  return typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(6)) : value;
}

export function product(shape) {
  return shape.reduce((a, b) => a * b, 1);
}
