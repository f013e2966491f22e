// Unpacks the columns that columns.py packs into typed arrays.
import { byId } from "./dom.js";

/** @type {ArrayBuffer[]} Buffers by number; those that are not unpacked yet are missing. */
export const chunks = [];

export async function inflateElement(id) {
  return inflated(id).arrayBuffer();
}

export function inflated(id) {
  const element = byId(id);
  const text = atob(element.textContent ?? "");
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  element.remove(); // frees the packed text, which is not read again
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream);
}

export async function inflateText(id) {
  return new TextDecoder().decode(await inflateElement(id));
}

/**
 * Numbers are stored as planes: all lowest bytes, then all second bytes, and so on.
 * @param {ArrayBuffer} buffer
 * @param {import("../types").Packed} place
 * @param {number} length
 */
export function readColumn(buffer, [place, width], length) {
  const bytes = new Uint8Array(buffer, place, width * length);
  if (width === 1) return bytes;
  const values =
    width === 2 ? new Uint16Array(length) : width <= 4 ? new Uint32Array(length) : new Float64Array(length);
  for (let plane = 0, scale = 1; plane < width; plane++, scale *= 256)
    for (let i = 0, at = plane * length; i < length; i++, at++) values[i] += bytes[at] * scale;
  return values;
}

// 0 1 2 3 4 become 0 -1 1 -2 2.
function zigzagDecode(value) {
  return value % 2 ? -(value + 1) / 2 : value / 2;
}

export function runningSum(values) {
  const found = new Float64Array(values.length);
  for (let i = 0, at = 0; i < values.length; i++) found[i] = at += zigzagDecode(values[i]);
  return found;
}

const SIGNED = new Set(["correlation", "host_memory", "stack", "shape", "value", "low", "high"]);

/**
 * @param {ArrayBuffer} buffer
 * @param {import("../types").Piece["marks"]} places
 */
export function decodeMarks(buffer, places) {
  const { n, start: steps, length, count: more, busy: unused, ...others } = places;
  const step = readColumn(buffer, steps, n),
    span = readColumn(buffer, length, n);
  const start = new Float64Array(n),
    end = new Float64Array(n);
  let reach = end;
  for (let i = 0, at = 0, far = -Infinity; i < n; i++) {
    start[i] = at += step[i];
    end[i] = at + span[i];
    if (end[i] < far && reach === end) reach = end.slice();
    if (reach !== end) reach[i] = Math.max(far, end[i]);
    far = Math.max(far, end[i]);
  }
  /** @type {import("../types").Marks} */
  const marks = /** @type {any} */ ({ n, start, end, reach });
  for (const [name, place] of Object.entries(others)) {
    const values = readColumn(buffer, place, n);
    marks[name] = SIGNED.has(name) ? runningSum(values) : values;
  }
  if (more) {
    marks.count = readColumn(buffer, more, n);
    const idle = readColumn(buffer, unused, n);
    marks.busyOf = (i) => end[i] - start[i] - zigzagDecode(idle[i]);
  }
  return marks;
}

/**
 * @param {import("../types").Marks} marks
 * @param {number} i
 */
export function eventCount(marks, i) {
  return marks.count ? marks.count[i] + 1 : 1;
}

/**
 * @param {import("../types").Marks} marks
 * @param {number} i
 */
export function busyTime(marks, i) {
  return marks.busyOf ? marks.busyOf(i) : marks.end[i] - marks.start[i];
}

/**
 * The index of the first value greater than `at`, in ascending values.
 * @param {ArrayLike<number>} values
 * @param {number} at
 */
export function firstAbove(values, at) {
  let low = 0,
    high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > at) high = middle;
    else low = middle + 1;
  }
  return low;
}
