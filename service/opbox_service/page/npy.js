// Files of numpy.save.

import { fromHalf } from "./tensor_bytes.js";
import { product } from "./values.js";

const MAGIC = "\x93NUMPY";
const ARRAYS = {
  f8: Float64Array,
  f4: Float32Array,
  f2: Uint16Array,
  i1: Int8Array,
  i2: Int16Array,
  i4: Int32Array,
  i8: BigInt64Array,
  u1: Uint8Array,
  u2: Uint16Array,
  u4: Uint32Array,
  u8: BigUint64Array,
  b1: Uint8Array,
};

/** The array in a .npy file: { shape, values, dtype }, values in row-major order; an Error with what was expected. */
export function readNpy(name, buffer) {
  const latin = (from, to) => String.fromCharCode(...new Uint8Array(buffer.slice(from, to)));
  if (buffer.byteLength < 10 || latin(0, 6) !== MAGIC) throw new Error(`${name}: expected a file of numpy.save, got another one`);
  const view = new DataView(buffer);
  const long = view.getUint8(6) > 1;
  const begin = long ? 12 : 10;
  const end = begin + (long ? view.getUint32(8, true) : view.getUint16(8, true));
  const header = latin(begin, end);
  const dtype = header.match(/'descr':\s*'([^']*)'/)?.[1] ?? "one of several fields";
  const sizes = header.match(/'shape':\s*\(([^)]*)\)/)?.[1];
  if (sizes === undefined) throw new Error(`${name}: expected a header with a shape, got ${header.slice(0, 80)}`);
  const shape = sizes.split(",").map((text) => text.trim()).filter(Boolean).map(Number);
  const Typed = /^[<|=]/.test(dtype) ? ARRAYS[dtype.slice(1)] : undefined;
  if (!Typed) throw new Error(`${name}: expected an array of little-endian numbers, got dtype ${dtype}: convert it with array.astype("float32")`);
  const size = product(shape);
  if (buffer.byteLength - end < size * Typed.BYTES_PER_ELEMENT) {
    throw new Error(`${name}: expected ${size * Typed.BYTES_PER_ELEMENT} bytes of values, got ${buffer.byteLength - end}: the file is cut off`);
  }
  let values = new Typed(buffer.slice(end, end + size * Typed.BYTES_PER_ELEMENT));
  if (dtype.endsWith("f2")) values = Float32Array.from(values, fromHalf);
  if (/'fortran_order':\s*True/.test(header)) values = rowMajor(values, shape);
  return { shape, values, dtype: dtype.slice(1) };
}

/** Values whose first axis varies fastest, as ones whose last axis does. */
function rowMajor(values, shape) {
  const sorted = new values.constructor(values.length);
  const strides = shape.map((_, axis) => product(shape.slice(0, axis)));
  const index = shape.map(() => 0);
  for (let at = 0; at < values.length; at++) {
    sorted[at] = values[index.reduce((sum, i, axis) => sum + i * strides[axis], 0)];
    for (let axis = shape.length - 1; axis >= 0 && ++index[axis] === shape[axis]; axis--) index[axis] = 0;
  }
  return sorted;
}
