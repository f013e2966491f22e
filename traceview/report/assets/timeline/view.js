// Which range of time shows, and when it is drawn.
import { byId, context2d } from "../core/dom.js";
import { page } from "../core/page.js";
import { readPalette } from "../core/palette.js";
import { shifted, zoomed } from "../core/span.js";
import { duration } from "../core/words.js";
import { drawAxis } from "./axis.js";
import { drawRows } from "./draw.js";
import { showLabels } from "./labels.js";
import { rowsRoom, sizeFrame } from "./height.js";
import { visibleSources } from "./levels.js";
import { drawAreaBars } from "./overlay.js";
import { drawnY, findQuiet, placeRows, rowAt, stuckHeight } from "./rows.js";
import { AXIS, board, pointer, view } from "./state.js";

const NARROWEST = 20; // ns
const SLICE = 25; // ms of work without a pause
const CALM = 250; // ms without a move, after which rows without events fold away
export const afterRedraw = []; // functions to call after each redraw

// The whole time that the view can show, and the part that it shows first.
export function startView(span, first) {
  // A small margin keeps the first and last event off the edges.
  const air = Math.max(1, (span[1] - span[0]) * 0.005);
  view.whole = [span[0] - air, span[1] + air];
  view.first = first ?? view.whole;
  [view.from, view.to] = view.first;
}

export function setView(from, to) {
  const most = view.whole[1] - view.whole[0];
  const length = Math.min(most, Math.max(NARROWEST, to - from));
  const middle = (from + to) / 2;
  view.from = Math.min(Math.max(middle - length / 2, view.whole[0]), view.whole[1] - length);
  view.to = view.from + length;
  schedule();
}

/**
 * Shows a span between two times with a share of its length, and at least some ns, on both sides.
 * @param {number[]} span
 */
export function setSpan([from, to], share, least = 0) {
  const air = Math.max((to - from) * share, least);
  setView(from - air, to + air);
}

// Zooms by a factor; the time `about` keeps its place on the screen.
export function zoom(factor, about) {
  const length = view.to - view.from;
  const wanted = Math.min(Math.max(length * factor, NARROWEST), view.whole[1] - view.whole[0]);
  const { from, to } = zoomed(view, wanted / length, about);
  setView(from, to);
}

export function pan(share) {
  const { from, to } = shifted(view, share);
  setView(from, to);
}

export function fit() {
  setView(...view.whole);
}

export function schedule() {
  if (view.pending) return;
  view.pending = true;
  requestAnimationFrame(() => {
    view.pending = false;
    redraw();
  });
}

function redraw() {
  const ratio = devicePixelRatio || 1,
    began = performance.now();
  const context = context2d(byId("canvas", HTMLCanvasElement));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawRows(context, { ...view, top: byId("scroll").scrollTop });
  drawAxis();
  drawAreaBars();
  byId("range").textContent = duration(view.to - view.from);
  view.frames++;
  view.took = performance.now() - began;
  for (const action of afterRedraw) action();
}

function sizeCanvas(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
}

// Lays out and draws everything, after a change of size, theme or rows.
export function rebuild() {
  findQuiet();
  sizeRows();
  redraw();
}

// Folds rows away when the view has come to rest; the row under the pointer, or the first, keeps its place.
export function settle() {
  clearTimeout(view.calm);
  view.calm = setTimeout(() => {
    view.calm = undefined;
    if (pointer.last || !findQuiet()) return;
    const scroll = byId("scroll"),
      y = pointer.over ? pointer.over.clientY - scroll.getBoundingClientRect().top : 0,
      kept = rowAt(y + scroll.scrollTop),
      before = kept ? drawnY(kept, scroll.scrollTop) : 0;
    sizeRows();
    if (kept && board.shown.includes(kept)) scroll.scrollTop += drawnY(kept, scroll.scrollTop) - before;
    redraw();
  }, CALM);
}

/**
 * Lays out and draws everything for the first time, in several tasks: the marks in view are unpacked row by row.
 * @param {() => Promise<void>} nextTask
 */
export async function layOut(nextTask) {
  sizeRows();
  let began = performance.now();
  for (const { lanes } of board.shown)
    for (const lane of lanes ?? []) {
      if (performance.now() - began > SLICE) {
        await nextTask();
        began = performance.now();
      }
      visibleSources(lane, view.from, view.to);
    }
  await nextTask();
  rebuild();
}

function sizeRows() {
  const scroll = byId("scroll"),
    axis = scroll.offsetTop + 2;
  placeRows(rowsRoom() - axis);
  showLabels(rebuild);
  sizeFrame(board.tall + axis);
  view.height = scroll.clientHeight;
  view.width = Math.max(50, Math.floor(scroll.clientWidth - byId("labels").offsetWidth));
  byId("labels").classList.toggle("stuck", stuckHeight() > 0);
  byId("stage").style.height = view.height + "px";
  sizeCanvas(byId("canvas"), view.width, view.height);
  sizeCanvas(byId("axis"), view.width, AXIS);
  readPalette(page.looks, context2d(byId("canvas", HTMLCanvasElement)));
}
