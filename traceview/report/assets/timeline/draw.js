// Draws marks on a canvas at the resolution of the screen. Marks narrower than a few pixels are summed: each column of
// pixels is filled from below to its busy share, so that the cost depends on the screen only.
import { firstAbove, busyTime, eventCount } from "../core/columns.js";
import { context2d, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { cssColour, lookWord, palette } from "../core/palette.js";
import { countText, middle } from "../core/words.js";
import { drawGrid } from "./axis.js";
import { colours, isRange, tintFunction } from "./colours.js";
import { drawCounter } from "./counters.js";
import { visibleSources } from "./levels.js";
import { drawOver } from "./overlay.js";
import { drawnY, isStuck, stuckHeight } from "./rows.js";
import { board, view } from "./state.js";

const MIN_TEXT = 34;
const THIN = 4;
export const drawn = { marks: 0 };

// The pixels of all lanes, one below the other, and for each column of the current lane how full it is, its widest mark
// and that mark's look.
const strips = newStrips(1, 1);
const MIN_FILLED = 2; // pixels: a single short event stays visible
const MIN_RANGE = 0.4; // the least height of a range: it matters that it is there

export function drawRows(context, state) {
  const { width, height } = state;
  context.clearRect(0, 0, width, height);
  context.font = '11px system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
  context.textBaseline = "middle";
  drawn.marks = 0;
  const stuck = stuckHeight();
  drawPart(context, state, stuck, height);
  if (stuck) drawPart(context, state, 0, stuck);
  drawOver(context, state);
}

// Draws the rows that stay in sight, above `stuckHeight`, or those that scroll below them.
function drawPart(context, state, from, to) {
  const { width, top } = state,
    ratio = devicePixelRatio || 1;
  const items = board.shown.filter((item) => {
    const y = drawnY(item, top);
    return isStuck(item) === to <= stuckHeight() && y + item.h >= from && y <= to;
  });
  context.save();
  context.beginPath();
  context.rect(0, from, width, to - from);
  context.clip();
  for (const item of items) drawBackground(context, item, drawnY(item, top), width);
  drawGrid(context, state);
  const boxes = laneBoxes(items, top);
  const wide = Math.round(width * ratio);
  let lines = 0;
  for (const box of boxes) {
    Object.assign(box, { line: lines, tall: Math.round(box.h * ratio) });
    lines += box.tall;
  }
  sizeStrips(wide, lines);
  for (const box of boxes) drawLane(context, box, wide, ratio);
  if (lines) strips.context.putImageData(strips.image, 0, 0, 0, 0, wide, lines);
  context.imageSmoothingEnabled = false;
  for (const { y, h, line, tall } of boxes) context.drawImage(strips.canvas, 0, line, wide, tall, 0, y, width, h);
  context.restore();
}

function laneBoxes(items, top) {
  const boxes = [];
  for (const item of items) {
    const y = drawnY(item, top);
    const { lanes } = item;
    if (!lanes) continue;
    const tall = (item.h - 3) / lanes.length;
    lanes.forEach((lane, place) =>
      boxes.push({
        item,
        lane,
        kind: item.summary ?? item.kind,
        y: Math.round(y + 1 + place * tall),
        h: Math.max(2, Math.round(tall - (lanes.length > 1 ? 2 : 1))),
      }),
    );
  }
  return boxes;
}

function newStrips(width, height) {
  const canvas = el("canvas", { width, height });
  const context = context2d(canvas);
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const full = new Float64Array(width + 1);
  return { canvas, context, image, pixels, full, widest: full.slice(), look: new Int16Array(width + 1) };
}

function sizeStrips(wide, lines) {
  if (strips.image.width !== wide || strips.image.height < lines)
    Object.assign(strips, newStrips(wide, Math.max(lines, 512)));
  strips.pixels.fill(0);
}

function drawBackground(context, item, y, width) {
  if (item.kind === "group") {
    context.fillStyle = cssColour("--sunk");
    context.fillRect(0, y, width, item.h);
  }
  context.fillStyle = cssColour(item.kind === "group" ? "--line" : "--grid");
  context.fillRect(0, Math.round(y), width, 1);
}

function drawLane(context, box, wide, ratio) {
  if (box.kind === "counter") return drawCounterLane(context, box);
  strips.full.fill(0);
  strips.widest.fill(-1);
  for (const source of visibleSources(box.lane, view.from, view.to)) drawSource(context, box, source, wide, ratio);
  const { full, widest, look, pixels } = strips;
  const bottom = (box.line + box.tall - 1) * wide,
    least = Math.min(box.tall, isRange(box.kind) ? Math.round(box.tall * MIN_RANGE) : MIN_FILLED * ratio);
  for (let at = 0; at < wide; at++) {
    if (widest[at] < 0) continue;
    const tint = palette.pixel[look[at]],
      filled = Math.max(least, Math.round(Math.min(1, full[at]) * box.tall));
    for (let to = bottom + at, i = 0; i < filled; i++, to -= wide) pixels[to] = tint;
    drawn.marks++;
  }
}

function drawCounterLane(context, box) {
  for (const { marks } of visibleSources(box.lane, view.from, view.to)) {
    const first = firstAbove(marks.reach, view.from),
      last = firstAbove(marks.start, view.to);
    drawCounter(context, box, marks, first, last);
    drawn.marks += last - first;
  }
}

function drawSource(context, box, source, wide, ratio) {
  const { marks } = source,
    { full, widest, look } = strips,
    tintOf = tintFunction(box.kind, marks);
  const scale = wide / (view.to - view.from),
    zero = view.from;
  const first = firstAbove(marks.reach, source.from),
    last = firstAbove(marks.start, source.to);
  const left = Math.max(0, (source.from - zero) * scale),
    right = Math.min(wide, (source.to - zero) * scale);
  let text = null;
  for (let i = first; i < last; i++) {
    const tint = tintOf(i);
    if (colours.hidden[tint]) continue;
    const x = Math.max(left, (marks.start[i] - zero) * scale),
      w = Math.min(right, (marks.end[i] - zero) * scale) - x;
    if (w >= THIN * ratio) {
      // The next mark is drawn over this one where they overlap, so that a text ends where it begins.
      drawText(context, text, box, x / ratio);
      text = drawMark(context, box, source, i, tint, x / ratio, w / ratio);
      continue;
    }
    const share = marks.count && w > 0 ? Math.min(1, busyTime(marks, i) / (marks.end[i] - marks.start[i] || 1)) : 1;
    let at = Math.min(x | 0, wide - 1),
      rest = Math.max(w, 0);
    do {
      const part = Math.min(rest, at + 1 - Math.max(x, at));
      full[at] += part * share;
      if (part >= widest[at]) {
        widest[at] = part;
        look[at] = tint;
      }
      rest -= part;
      at++;
    } while (rest > 0.05 && at < wide);
  }
  drawText(context, text, box, Infinity);
}

// Returns the mark's text and its place, which is drawn later; null without one.
function drawMark(context, box, source, i, tint, x, w) {
  const { marks } = source;
  const left = Math.round(x),
    wide = Math.max(1, Math.round(x + w) - left - (w > 5 ? 1 : 0));
  const several = eventCount(marks, i);
  context.fillStyle = palette.fill[tint];
  if (several > 1) drawSummary(context, box, marks, i, left, wide);
  else context.fillRect(left, box.y, wide, box.h);
  if (several === 1 && wide > 5 && palette.pattern[tint]) {
    context.fillStyle = palette.pattern[tint];
    context.fillRect(left, box.y, wide, box.h);
  }
  drawn.marks++;
  if (wide <= MIN_TEXT || box.h <= 11) return null;
  const ink = several > 1 ? cssColour("--ink") : palette.ink[tint];
  return { text: markText(box.kind, marks, i, several), left, right: left + wide, ink };
}

// A merged mark is a pale box with a dashed top, filled from below to the share of time that its events are busy.
function drawSummary(context, box, marks, i, left, wide) {
  const share = Math.min(1, busyTime(marks, i) / (marks.end[i] - marks.start[i] || 1));
  const filled = Math.max(1, Math.round(box.h * share));
  context.globalAlpha = 0.22;
  context.fillRect(left, box.y, wide, box.h);
  context.globalAlpha = 0.5;
  context.fillRect(left, box.y + box.h - filled, wide, filled);
  context.globalAlpha = 1;
  for (let x = left; x < left + wide - 1; x += 6) context.fillRect(x, box.y, Math.min(3, left + wide - x), 1);
}

function markText(kind, marks, i, several) {
  if (several > 1) return `${countText(several)} events`;
  if (kind === "idle" || kind === "exposed") return lookWord(page.looks[marks.look[i]]).split(": ")[1];
  return page.names[marks.name[i]] ?? "";
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {{ text: string, left: number, right: number, ink: string } | null} drawn
 * @param {{ y: number, h: number }} box
 * @param {number} end where the next mark begins
 */
function drawText(context, drawn, box, end) {
  if (!drawn) return;
  const { text, left, ink } = drawn,
    room = Math.min(drawn.right, end) - left,
    letters = Math.floor((room - 8) / 6.1);
  if (letters < 3) return;
  context.fillStyle = ink;
  context.fillText(middle(text, letters), left + 4, box.y + box.h / 2 + 0.5, room - 6);
}
