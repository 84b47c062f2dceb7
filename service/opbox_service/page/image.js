// An image as the values of a model's input.

import { product } from "./values.js";

const CHANNELS = [1, 3, 4];
const GREY = [0.299, 0.587, 0.114]; // the weights of ITU-R BT.601

/** The layout that a shape seems to have: "first" for NCHW, "last" for NHWC. */
export function layoutOf(shape) {
  const first = shape.at(-3);
  return !CHANNELS.includes(first) && CHANNELS.includes(shape.at(-1)) ? "last" : "first";
}

/** The pixels of an image file for an input.

    shape: as the model has it, -1 where the image decides; three or four lengths, or an example's values as one row.
    layout: "first" or "last": where the channels are.
    fit: "stretch" the whole image to the input's height and width, or take the "middle" of it.
    scaling: "unit" for 0..1, "byte" for 0..255, "standard" for (x - mean) / std of 0..1 by channel.
    canvas: shows what the model gets.

    Gives { shape, values, size }: size is the image's own; or an Error with what was expected. */
export async function imageValues(name, file, { shape, layout, fit, scaling, mean, std, canvas }) {
  const full = wholeShape(name, shape);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name}: expected an image that this browser can read, got another file`);
  }
  const first = shape.length === 2 || layout === "first";
  const [batch, ...rest] = full;
  let [channels, height, width] = first ? rest : [rest[2], rest[0], rest[1]];
  if (channels < 0) channels = 3;
  if (!CHANNELS.includes(channels)) {
    throw new Error(`${name}: expected 1, 3 or 4 channels for an image, got ${channels}: choose the other layout, or use a .npy file`);
  }
  if (height < 0) height = bitmap.height;
  if (width < 0) width = bitmap.width;
  const pixels = draw(bitmap, canvas, width, height, fit, channels);
  const one = scaled(pixels, { channels, first, scaling, mean, std });
  const copies = Math.max(1, batch);
  const values = new Float32Array(copies * one.length);
  for (let i = 0; i < copies; i++) values.set(one, i * one.length);
  const whole = [copies, ...(first ? [channels, height, width] : [height, width, channels])];
  const size = [bitmap.width, bitmap.height];
  bitmap.close();
  const own = shape.length === 2 ? [copies, one.length] : whole.slice(4 - shape.length);
  return { shape: own, values: values.subarray(0, product(own)), size };
}

/** The four lengths of an input; rows are grey squares, or squares of three colours one after the other. */
function wholeShape(name, shape) {
  if (shape.length === 4) return shape;
  if (shape.length === 3) return [1, ...shape];
  const side = (channels) => Math.sqrt(shape[1] / channels);
  const channels = shape.length === 2 && [1, 3].find((number) => Number.isInteger(side(number)));
  if (channels) return [shape[0], channels, side(channels), side(channels)];
  throw new Error(`${name}: expected an input of 3 or 4 dimensions, or rows of a square's pixels, for an image, got ${shape.join(" × ")}: use a .npy file`);
}

/** Draw an image onto a canvas of this size; its RGBA bytes. */
function draw(bitmap, canvas, width, height, fit, channels) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  if (channels < 4) {
    // Where the image is transparent, it is white: three channels cannot say so.
    context.fillStyle = "white";
    context.fillRect(0, 0, width, height);
  }
  const scale = fit === "middle" ? Math.min(bitmap.width / width, bitmap.height / height) : null;
  const [w, h] = scale === null ? [bitmap.width, bitmap.height] : [width * scale, height * scale];
  context.drawImage(bitmap, (bitmap.width - w) / 2, (bitmap.height - h) / 2, w, h, 0, 0, width, height);
  return context.getImageData(0, 0, width, height).data;
}

function scaled(pixels, { channels, first, scaling, mean, std }) {
  const area = pixels.length / 4;
  const values = new Float32Array(area * channels);
  const by = scaling === "byte" ? 1 : 1 / 255;
  for (let pixel = 0; pixel < area; pixel++) {
    for (let channel = 0; channel < channels; channel++) {
      const at = 4 * pixel;
      const byte = channels === 1 ? GREY[0] * pixels[at] + GREY[1] * pixels[at + 1] + GREY[2] * pixels[at + 2] : pixels[at + channel];
      let value = byte * by;
      if (scaling === "standard") value = (value - mean[channel % mean.length]) / std[channel % std.length];
      values[first ? channel * area + pixel : pixel * channels + channel] = value;
    }
  }
  return values;
}
