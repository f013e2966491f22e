// The ticks of a time axis, and their texts: the same on every timeline.
import { context2d } from "./dom.js";
import { cssColour } from "./palette.js";

const TICK_PIXELS = 120;

export function rulerTicks(from, to, width) {
  const rough = ((to - from) / width) * TICK_PIXELS,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? 10 * power);
  const moments = [];
  for (let at = Math.ceil(from / step); at * step <= to; at++) moments.push(at * step + 0);
  return { step, moments };
}

const RULER_UNITS = { s: 1e9, ms: 1e6, µs: 1e3, ns: 1 };
const MAX_TICK_DIGITS = 4;

// The largest unit that the latest time fills and that tells one tick from the next in a few digits.
export function tickText(ns, step, latest) {
  const digitsIn = (scale) => Math.max(0, Math.ceil(Math.log10(scale / step) - 1e-9));
  const [unit, scale] =
    Object.entries(RULER_UNITS).find(([, one]) => latest >= one && digitsIn(one) <= MAX_TICK_DIGITS) ??
    (step >= 1e3 ? ["µs", 1e3] : ["ns", 1]);
  const digits = digitsIn(scale);
  return (
    ((ns || 0) / scale).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }) +
    " " +
    unit
  );
}

/**
 * Draws the axis of a canvas, and its grid.
 * @param {CanvasRenderingContext2D} context
 * @param {{ from: number, to: number, left: number, right: number, axis: number, height: number }} place
 */
export function drawRuler(context, { from, to, left, right, axis, height }) {
  const { step, moments } = rulerTicks(from, to, right - left);
  for (const at of moments) {
    const x = Math.round(left + ((at - from) / (to - from)) * (right - left));
    context.fillStyle = cssColour("--grid");
    context.fillRect(x, axis, 1, height - axis);
    context.fillStyle = cssColour("--soft");
    const text = tickText(at, step, to);
    context.fillText(text, Math.min(x + 3, right - context.measureText(text).width - 2), axis / 2);
  }
}

// A selected stretch of time, between two positions in pixels.
export function drawStretch(context, from, to, y, height) {
  context.fillStyle = cssColour("--focus");
  context.globalAlpha = 0.18;
  context.fillRect(Math.min(from, to), y, Math.abs(to - from), height);
  context.globalAlpha = 1;
  for (const x of [from, to]) context.fillRect(Math.round(x), y, 1, height);
}

// A canvas of this size in CSS pixels, cleared, with its context.
export function freshCanvas(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = context2d(canvas);
  context.scale(ratio, ratio);
  context.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  context.textBaseline = "middle";
  context.fillStyle = cssColour("--card");
  context.fillRect(0, 0, width, height);
  return context;
}
