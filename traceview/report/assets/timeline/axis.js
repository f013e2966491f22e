// The time axis and its grid.
import { byId, context2d } from "../core/dom.js";
import { cssColour } from "../core/palette.js";
import { rulerTicks, tickText } from "../core/ruler.js";
import { AXIS, view } from "./state.js";

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
  const { step, moments } = rulerTicks(view.from, view.to, view.width);
  for (const at of moments) {
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
  for (const at of rulerTicks(view.from, view.to, view.width).moments)
    context.fillRect(Math.round(toX(at)), 0, 1, height);
}
