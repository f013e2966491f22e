// What is drawn over the marks: highlight, selection, launch arrow and measured range.
import { byId, context2d } from "../core/dom.js";
import { cssColour } from "../core/palette.js";
import { drawStretch } from "../core/ruler.js";
import { duration } from "../core/words.js";
import { toX } from "./axis.js";
import { drawnY } from "./rows.js";
import { AXIS, area, board, selected, view } from "./state.js";

/** More that is drawn over the marks. @type {((context: CanvasRenderingContext2D, state: any) => void)[]} */
export const overlays = [];

export function drawOver(context, state) {
  if (view.lit) drawHighlight(context, state);
  for (const draw of overlays) draw(context, state);
  drawSelected(context, state);
  if (area.kept) drawArea(context, area.kept, state);
  drawArea(context, area, state);
}

function drawHighlight(context, { top, height, lit }) {
  const x = toX(lit.start),
    w = Math.max(2, toX(lit.end) - x);
  context.globalAlpha = 0.2;
  context.fillStyle = cssColour("--glow");
  context.fillRect(x, 0, w, height);
  context.globalAlpha = 1;
  context.strokeStyle = cssColour("--mark");
  context.lineWidth = 2;
  for (const item of board.shown)
    if (lit.rows.includes(item.id)) context.strokeRect(x - 1, drawnY(item, top) + 1, w + 2, item.h - 2);
}

function rowMiddle(id, top) {
  const item = board.shown.find((one) => one.id === id);
  return item ? drawnY(item, top) + item.h / 2 : null;
}

function drawSelected(context, { top }) {
  const { hit, partners, peers, producer } = selected;
  if (!hit) return;
  const item = board.shown.find((one) => one.id === hit.item.id);
  if (!item) return;
  const x = toX(hit.marks.start[hit.i]),
    w = Math.max(3, toX(hit.marks.end[hit.i]) - x),
    mine = drawnY(item, top) + item.h / 2,
    launch = item.kind === "call";
  context.strokeStyle = cssColour("--ink");
  context.lineWidth = 2;
  context.strokeRect(x - 1, drawnY(item, top) + 1, w + 2, item.h - 2);
  const from = producer && rowMiddle(producer.row.id, top);
  if (from) drawArrow(context, toX(producer.marks.end[producer.i]), from, launch ? x + w : x, mine);
  for (const { row, marks, i } of peers) {
    const y = rowMiddle(row.id, top);
    if (y !== null) drawArrow(context, x + w, mine, toX(marks.end[i]), y);
  }
  for (const { row, marks, i } of partners.slice(0, 20)) {
    const y = rowMiddle(row.id, top);
    if (y === null) continue;
    const other = toX(marks.start[i]);
    if (launch) drawArrow(context, x, mine, other, y);
    else drawArrow(context, other, y, x, mine);
  }
}

function drawArrow(context, x0, y0, x1, y1) {
  const bend = Math.max(24, Math.abs(x1 - x0) / 3);
  for (const [colour, width] of [
    [cssColour("--card"), 4],
    [cssColour("--mark"), 1.75],
  ]) {
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = width;
    context.beginPath();
    context.moveTo(x0, y0);
    context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 6, y1);
    context.stroke();
  }
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x1 - 8, y1 - 4);
  context.lineTo(x1 - 8, y1 + 4);
  context.fill();
}

function drawArea(context, { points, rows }, { top, height }) {
  const [from, to = from] = points;
  if (from === undefined) return;
  if (!rows) return drawStretch(context, toX(from), toX(to), 0, height);
  for (const item of board.shown)
    if (rows.includes(item.id)) drawStretch(context, toX(from), toX(to), drawnY(item, top), item.h);
}

export function drawAreaBars() {
  if (area.kept && area.kept !== area.result) drawBar(area.kept.points, "A ");
  drawBar(area.points, area.kept ? (area.kept === area.result ? "A " : "B ") : "");
}

function drawBar(points, letter) {
  if (points.length < 2) return;
  const context = context2d(byId("axis", HTMLCanvasElement));
  const [from, to] = points.map(toX);
  context.fillStyle = cssColour("--focus");
  context.fillRect(Math.min(from, to), AXIS - 3, Math.abs(to - from), 3);
  const text = letter + duration(Math.abs(points[1] - points[0])),
    wide = context.measureText(text).width;
  const x = Math.min(Math.max((from + to) / 2 - wide / 2, 2), view.width - wide - 4);
  context.fillStyle = cssColour("--card");
  context.fillRect(x - 16, 2, wide + 32, AXIS - 10); // covers a label of the axis that the text touches
  context.fillStyle = cssColour("--focus");
  context.fillText(text, x, AXIS / 2 - 1);
}
