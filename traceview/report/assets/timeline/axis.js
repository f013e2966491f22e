// The time axis and its grid.
import { byId, context2d } from "../core/dom.js";
import { cssColour } from "../core/palette.js";
import { AXIS, view } from "./state.js";

const TICK_PIXELS = 120;

function ticks(from, to, width) {
  const rough = ((to - from) / width) * TICK_PIXELS,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? 10 * power);
  const found = [];
  for (let at = Math.ceil(from / step); at * step <= to; at++) found.push(at * step + 0);
  return { step, found };
}

const UNITS = { s: 1e9, ms: 1e6, µs: 1e3, ns: 1 };
const MAX_DIGITS = 4;

// The largest unit that the latest time fills and that tells one tick from the next in a few digits.
function tickText(ns, step, latest) {
  const digitsIn = (scale) => Math.max(0, Math.ceil(Math.log10(scale / step) - 1e-9));
  const [unit, scale] =
    Object.entries(UNITS).find(([, one]) => latest >= one && digitsIn(one) <= MAX_DIGITS) ??
    (step >= 1e3 ? ["µs", 1e3] : ["ns", 1]);
  const digits = digitsIn(scale);
  return (
    ((ns || 0) / scale).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }) +
    " " +
    unit
  );
}

export function toX(ns) {
  return ((ns - view.from) / (view.to - view.from)) * view.width;
}

export function drawAxis() {
  const canvas = byId("axis", HTMLCanvasElement),
    context = context2d(canvas),
    ratio = devicePixelRatio || 1;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, view.width, AXIS);
  context.font = '11.5px system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
  context.textBaseline = "middle";
  const { step, found } = ticks(view.from, view.to, view.width);
  for (const at of found) {
    const x = Math.round(toX(at)),
      text = tickText(at, step, view.to),
      wide = context.measureText(text).width;
    context.fillStyle = cssColour("--line");
    context.fillRect(x, AXIS - 6, 1, 6);
    context.fillStyle = cssColour("--soft");
    context.fillText(text, Math.min(Math.max(x - wide / 2, 2), view.width - wide - 2), AXIS / 2 - 1);
  }
}

export function drawGrid(context, { height }) {
  context.fillStyle = cssColour("--grid");
  for (const at of ticks(view.from, view.to, view.width).found) context.fillRect(Math.round(toX(at)), 0, 1, height);
}
