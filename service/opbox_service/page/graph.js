// The graph of one operator's call, as MXNet writes graphs in JSON.

const NAME = "out";

/** Whether a condition of the catalogue's ({ param, in }) holds for the parameters. */
function holds(condition, params) {
  return condition.in.includes(params[condition.param] ?? null);
}

/** The operator's parameters with their defaults in the place of those that are not set, as values. */
export function effective(operator, attrs) {
  const params = {};
  for (const [name, schema] of Object.entries(operator.params.properties ?? {})) {
    const text = attrs[name];
    params[name] = text === undefined ? (schema.default ?? null) : meant(text);
  }
  return params;
}

function meant(text) {
  if (text === "True") return true;
  if (text === "False") return false;
  if (text === "None") return null;
  return text.trim() !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
}

/** The inputs of a call with these attributes: [{ name, doc, aux }]. */
export function inputsOf(operator, attrs) {
  const params = effective(operator, attrs);
  const declared = operator.inputs;
  if (Array.isArray(declared)) return declared.filter((slot) => !slot.when || holds(slot.when, params));
  if (declared.when && holds(declared.when, params)) return declared.instead.map((name) => ({ name }));
  const number = Math.min(64, Math.max(0, Number(params[declared.count] ?? 2) - (declared.less ?? 0)));
  const numbers = Array.from({ length: number }, (_, i) => i);
  if (!declared.parts) return numbers.map((i) => ({ name: `${declared.prefix}${i}` }));
  const parts = numbers.flatMap((i) => declared.parts.map((part) => ({ name: `${part}_${i}`, aux: declared.aux.includes(part) })));
  return [...parts, ...declared.last.map((name) => ({ name }))];
}

/** How many outputs can be seen. */
function visible(operator, attrs) {
  const params = effective(operator, attrs);
  const declared = operator.outputs;
  if (Array.isArray(declared)) {
    const shown = (slot) => (slot.visible === undefined ? true : typeof slot.visible === "object" ? holds(slot.visible, params) : slot.visible);
    return declared.filter((slot) => (!slot.when || holds(slot.when, params)) && shown(slot)).length;
  }
  const begins = declared.begins && attrs[declared.begins];
  const cuts = begins ? (begins.match(/-?\d+/g) ?? []).length : 0;
  return Number(params[declared.count]) || Math.max(1, cuts);
}

/** Symbol JSON of one call. */
export function graphOf(operator, attrs) {
  const inputs = inputsOf(operator, attrs);
  const variables = inputs.map((input) => ({ op: "null", name: input.name, inputs: [] }));
  const node = { op: operator.name, name: NAME, attrs, inputs: inputs.map((_, i) => [i, 0, 0]) };
  return {
    nodes: [...variables, node],
    arg_nodes: inputs.map((_, i) => i),
    heads: Array.from({ length: visible(operator, attrs) }, (_, i) => [inputs.length, i, 0]),
    attrs: { mxnet_version: ["int", 10901] },
  };
}
