// Tensors as bytes, as the Open Inference Protocol has them: little-endian, row-major.

const HALF_MAX = 65520; // what is not smaller rounds to infinity
const ARRAYS = {
  FP64: Float64Array,
  FP32: Float32Array,
  FP16: Uint16Array,
  BF16: Uint16Array,
  INT8: Int8Array,
  INT16: Int16Array,
  INT32: Int32Array,
  INT64: BigInt64Array,
  UINT8: Uint8Array,
  UINT16: Uint16Array,
  UINT32: Uint32Array,
  UINT64: BigUint64Array,
  BOOL: Uint8Array,
};
const scratch = new DataView(new ArrayBuffer(4));

/** Whether values of a type are whole numbers. */
export const isWhole = (datatype) => /^U?INT/.test(datatype);

/** Numbers as a typed array of their bytes; an Error that names the tensor where one does not fit the type. */
export function bytesOf(name, datatype, values) {
  const Typed = ARRAYS[datatype];
  if (!Typed) throw new Error(`${name}: expected a type that this page can send, got ${datatype}`);
  if (datatype === "FP16") return Typed.from(values, (value) => halfOf(Number(value)));
  if (datatype === "BF16") return Typed.from(values, (value) => brainOf(Number(value)));
  if (datatype === "BOOL") return Typed.from(values, (value) => Number(Number(value) !== 0));
  if (!isWhole(datatype)) return Typed.from(values, Number);
  const [low, high] = rangeOf(datatype);
  return Typed.from(values, (value) => {
    if (typeof value !== "bigint" && !Number.isInteger(Number(value))) throw new Error(`${name}: expected whole numbers for ${datatype}, got ${value}`);
    const whole = BigInt(value);
    if (whole < low || whole > high) throw new Error(`${name}: expected numbers from ${low} to ${high} for ${datatype}, got ${value}`);
    return Typed.BYTES_PER_ELEMENT === 8 ? whole : Number(whole);
  });
}

function rangeOf(datatype) {
  const bits = BigInt(datatype.match(/\d+/)[0]);
  return datatype.startsWith("U") ? [0n, 2n ** bits - 1n] : [-(2n ** (bits - 1n)), 2n ** (bits - 1n) - 1n];
}

/** The numbers in a buffer's bytes. */
export function numbersOf(datatype, buffer) {
  const typed = new ARRAYS[datatype](buffer);
  if (datatype === "FP16") return Array.from(typed, fromHalf);
  if (datatype === "BF16") return Array.from(typed, fromBrain);
  if (datatype === "BOOL") return Array.from(typed, Boolean);
  return Array.from(typed, Number);
}

const bitsOf = (value) => {
  scratch.setFloat32(0, value);
  return scratch.getUint32(0);
};

function halfOf(value) {
  const bits = bitsOf(value);
  const sign = (bits >>> 16) & 0x8000;
  const size = Math.abs(Math.fround(value));
  if (Number.isNaN(value)) return 0x7e00;
  if (size >= HALF_MAX) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | toEven(size * 2 ** 24);
  const exponent = ((bits >>> 23) & 255) - 127;
  // A mantissa that rounds up to 1024 carries into the exponent.
  return sign | (((exponent + 15) << 10) + toEven((size / 2 ** exponent - 1) * 1024));
}

function toEven(value) {
  const whole = Math.floor(value);
  const rest = value - whole;
  return rest > 0.5 || (rest === 0.5 && whole % 2) ? whole + 1 : whole;
}

export function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >>> 10) & 31;
  const mantissa = bits & 1023;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + mantissa / 1024) : 2 ** -24 * mantissa);
}

function brainOf(value) {
  if (Number.isNaN(value)) return 0x7fc0;
  const bits = bitsOf(value);
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

function fromBrain(bits) {
  scratch.setUint32(0, bits << 16);
  return scratch.getFloat32(0);
}
