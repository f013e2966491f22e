// Draws each capture on its canvas.
import { byId } from "../core/dom.js";
import { canvasPattern, cssColour, patternName } from "../core/palette.js";
import { drawRuler, drawStretch, freshCanvas } from "../core/ruler.js";
import { fitted, timeRange } from "../core/words.js";
import { AXIS, LABELS, LANE, captures, currentIteration, iterationStart, view } from "./state.js";

function strokeLine(context, x, y, toX, toY) {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(toX, toY);
  context.stroke();
}

// Ranges with the same name, numbers aside, have the same colour. The text of a range ends where a range inside it begins.
export function prepare(capture) {
  capture.inner = new Map();
  const open = capture.lanes.map(() => []);
  capture.events.forEach((event, index) => {
    const stack = open[event[0]];
    while (stack.length && eventEnd(capture.events[stack.at(-1)]) <= event[1]) stack.pop();
    if (stack.length && !capture.inner.has(stack.at(-1))) capture.inner.set(stack.at(-1), event[1]);
    stack.push(index);
  });
  capture.hue = capture.names.map((name) => "range-" + (textHash(name.replace(/[0-9]/g, "")) % 8));
}

function eventEnd([, start, length]) {
  return start + length;
}

function textHash(text) {
  return [...text].reduce((sum, char) => (31 * sum + char.codePointAt(0)) % 997, 7);
}

export function draw() {
  captures.forEach(drawCapture);
  const numbers = captures.map((capture) => capture.first + currentIteration(capture) + 1);
  if (captures.length)
    byId("place").textContent = `iteration ${numbers.join(" / ")}, ${timeRange(view.from, view.to)} after its start`;
  document.documentElement.dataset.drawn = `${view.from} ${view.to} ${view.step}`;
}

function drawCapture(capture) {
  const { canvas } = capture;
  const width = Math.max(canvas.getBoundingClientRect().width, LABELS + 50);
  const height = AXIS + capture.lanes.length * LANE;
  const context = freshCanvas(canvas, width, height);
  const zero = iterationStart(capture);
  const scale = (width - LABELS) / (view.to - view.from);
  const toX = (ns) => LABELS + (ns - zero - view.from) * scale;
  context.save();
  context.beginPath();
  context.rect(LABELS, 0, width - LABELS, height);
  context.clip();
  drawBands(context, capture, toX, height);
  drawRuler(context, { from: view.from, to: view.to, left: LABELS, right: width, axis: AXIS, height });
  drawEvents(context, capture, toX, width);
  drawBorders(context, capture, toX, height);
  if (view.area) drawStretch(context, toX(zero + view.area[0]), toX(zero + view.area[1]), 0, height);
  context.restore();
  context.fillStyle = cssColour("--ink");
  capture.lanes.forEach((lane, row) => {
    context.fillText(fitted(context, lane, LABELS - 14), 8, AXIS + row * LANE + LANE / 2);
  });
}

function drawBands(context, capture, toX, height) {
  capture.iterations.forEach(([from, to], index) => {
    context.fillStyle = cssColour(index % 2 ? "--sunk" : "--card");
    context.fillRect(toX(from), AXIS, toX(to) - toX(from), height);
  });
}

function drawEvents(context, capture, toX, width) {
  const fills = capture.looks.map((look) =>
    canvasPattern(context, patternName(look), cssColour("--" + look) || "#888"),
  );
  const ends = capture.lanes.map(() => -1);
  capture.events.forEach(([lane, start, length, look, name], index) => {
    const from = toX(start);
    const to = Math.max(toX(start + length), from + 0.6);
    if (to < LABELS || from > width || (to - from < 1 && to <= ends[lane])) return;
    ends[lane] = Math.max(ends[lane], to);
    const range = capture.looks[look] === "range";
    context.globalAlpha = view.lit === null || view.lit === capture.names[name] ? 1 : 0.25;
    context.fillStyle = range ? cssColour("--" + capture.hue[name]) : fills[look];
    context.fillRect(from, AXIS + lane * LANE + 2, to - from, LANE - 4);
    const room = capture.inner.has(index) ? Math.min(to, toX(capture.inner.get(index))) : to;
    if (room - from > 40)
      drawName(context, capture.names[name], lane, from, room, cssColour(range ? "--ink" : "--page"));
  });
  context.globalAlpha = 1;
}

function drawName(context, text, lane, from, to, ink) {
  const left = Math.max(from, LABELS);
  if (to - left < 30) return;
  context.fillStyle = ink;
  context.fillText(fitted(context, text, to - left - 8), left + 4, AXIS + lane * LANE + LANE / 2);
}

function drawBorders(context, capture, toX, height) {
  capture.iterations.forEach(([from, to], index) => {
    const current = index === currentIteration(capture);
    context.strokeStyle = cssColour("--mark");
    context.lineWidth = current ? 2 : 1;
    for (const moment of current ? [from, to] : [from]) strokeLine(context, toX(moment), 0, toX(moment), height);
  });
}
