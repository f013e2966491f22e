// All ranks on one timeline, their clocks aligned: each rank's collectives, the part in which it waits, and lines that
// join a collective across ranks.
import { firstAbove, readColumn } from "../core/columns.js";
import { byId, queryAll } from "../core/dom.js";
import { canvasPattern, cssColour } from "../core/palette.js";
import { drawRuler, freshCanvas } from "../core/ruler.js";
import { moveOfKey, shifted, spanMoves, zoomed } from "../core/span.js";
import { watchTip } from "../core/tip.js";
import { isSideways, watchWheel } from "../core/wheel.js";
import { countText, duration, fitted } from "../core/words.js";
import { selectCell } from "./moves.js";
import { content, map } from "./state.js";
import { rankLabel } from "./words.js";
import { drawWork, loadWork, workEnd, workText } from "./work.js";

const LEFT = 190; // pixels, as the next three
const TOP = 22;
const MAX_HIGH = 420;
const MIN_SPLIT = 14;
const SHORTEST = 1000; // ns
const MAX_LINES = 400; // collectives in view; more would be one grey area
const FIRST_SHOWN = 24; // collectives that the first view shows

/** @type {{ groups: any[], from: number, to: number, end: number }} */
const together = { groups: [], from: 0, to: 1, end: 1 };

/** @param {ArrayBuffer} buffer */
export function loadTogether(buffer) {
  byId("together").hidden = !content.times.length && !content.work.length;
  loadWork(buffer);
  together.groups = content.times.map(({ ranks, names, kind, count, start, length }) => {
    const starts = readColumn(buffer, start, ranks.length * count);
    const lengths = readColumn(buffer, length, ranks.length * count);
    const row = (values, at) => values.subarray(at * count, (at + 1) * count);
    const rows = ranks.map((rank, at) => ({ rank, start: row(starts, at), length: row(lengths, at) }));
    const kinds = readColumn(buffer, kind, count);
    const last = Float64Array.from(kinds, (_, at) => Math.max(...rows.map((one) => one.start[at])));
    return { rows, count, last, kind: (at) => names[kinds[at]] };
  });
  together.end = Math.max(
    workEnd(),
    ...together.groups.flatMap(({ rows, count }) => rows.map((row) => row.start[count - 1] + row.length[count - 1])),
  );
  const [first] = together.groups;
  if (!first) {
    [together.from, together.to] = [0, together.end];
    return watchTogether();
  }
  const at = Math.max(0, Math.floor((first.count - FIRST_SHOWN) / 2));
  const until = Math.min(first.count - 1, at + FIRST_SHOWN);
  const cut = content.timesLeftOut;
  byId("together-cut").textContent = cut ? `${countText(cut)} more collectives before and after are not drawn.` : "";
  [together.from, together.to] = [first.rows[0].start[at], first.last[until] + first.rows[0].length[until]];
  watchTogether();
}

function rowHeight() {
  return Math.max(2, Math.min(content.work.length ? 40 : 24, (MAX_HIGH - TOP) / Math.max(map.order.length, 1)));
}

// A row has its work above its collectives; a low row has the collectives over the work.
function isSplit() {
  return rowHeight() >= MIN_SPLIT && content.work.length > 0;
}

function workBox(row, width) {
  const high = rowHeight();
  const [top, height] = isSplit() ? [2, high / 2 - 2] : [0, high > 6 ? high - 2 : high];
  return { left: LEFT, right: width, top: TOP + row * high + top, height };
}

function toX(ns, width) {
  return LEFT + ((ns - together.from) / (together.to - together.from)) * (width - LEFT);
}

export function drawTogether() {
  if (byId("together").hidden) return;
  const canvas = byId("together-canvas", HTMLCanvasElement);
  const width = Math.max(canvas.getBoundingClientRect().width, LEFT + 60);
  const height = TOP + map.order.length * rowHeight();
  const context = freshCanvas(canvas, width, height);
  drawNames(context);
  context.save();
  context.beginPath();
  context.rect(LEFT, 0, width - LEFT, height);
  context.clip();
  drawRuler(context, { from: together.from, to: together.to, left: LEFT, right: width, axis: TOP, height });
  const places = new Map(map.order.map((rank, row) => [rank, row]));
  for (const [rank, row] of places) drawWork(context, rank, together, workBox(row, width));
  for (const group of together.groups) drawGroup(context, group, places, width);
  context.restore();
  byId("together-range").textContent = `${duration(together.to - together.from)} from ${duration(together.from)}`;
  canvas.dataset.drawn = `${Math.round(together.from)} ${Math.round(together.to)}`;
}

function drawNames(context) {
  const high = rowHeight();
  const every = Math.max(1, Math.ceil(14 / high));
  map.order.forEach((rank, row) => {
    if (row % every && !content.ranks[rank].straggler) return;
    context.fillStyle = cssColour(content.ranks[rank].straggler ? "--high" : "--ink");
    context.fillText(fitted(context, rankLabel(rank), LEFT - 14), 8, TOP + (row + 0.5) * high);
  });
}

function drawGroup(context, group, places, width) {
  const high = rowHeight();
  const fills = { waiting: cssColour("--d2h"), moving: cssColour("--communication") };
  const pattern = high > 6 ? canvasPattern(context, "slashed") : null;
  for (const { rank, start, length } of group.rows) {
    const air = high > 6 ? 2 : 0,
      half = isSplit() ? high / 2 : 0,
      y = TOP + places.get(rank) * high + half + (half ? 0 : air);
    const tall = high - half - (half ? air : 2 * air);
    let drawn = -1;
    for (
      let at = Math.max(0, firstAbove(start, together.from) - 1);
      at < group.count && start[at] <= together.to;
      at++
    ) {
      const [x, end] = [toX(start[at], width), toX(start[at] + length[at], width)];
      if (end < drawn + 0.7) continue;
      drawn = Math.max(end, x + 0.7);
      const arrived = Math.min(toX(group.last[at], width), end);
      fill(context, [fills.waiting, pattern], x, y, arrived - x, tall);
      fill(context, [fills.moving], Math.max(x, arrived), y, Math.max(drawn - Math.max(x, arrived), 0.7), tall);
    }
  }
  drawLines(context, group, places, width);
}

function fill(context, fills, x, y, wide, high) {
  if (wide <= 0) return;
  for (const style of fills.filter(Boolean)) {
    context.fillStyle = style;
    context.fillRect(x, y, wide, high);
  }
}

// A line joins the moments at which ranks arrive at a collective; a dot marks the last.
function drawLines(context, group, places, width) {
  const high = rowHeight();
  const first = firstAbove(group.last, together.from);
  const end = firstAbove(group.last, together.to);
  if (end - first > MAX_LINES) return;
  const rows = [...group.rows].sort((a, b) => (places.get(a.rank) ?? 0) - (places.get(b.rank) ?? 0));
  for (let at = first; at < end; at++) {
    context.beginPath();
    for (const { rank, start } of rows) context.lineTo(toX(start[at], width), TOP + (places.get(rank) + 0.5) * high);
    context.strokeStyle = cssColour("--ink");
    context.lineWidth = 0.7;
    context.stroke();
    const last = rows.find(({ start }) => start[at] === group.last[at]);
    context.beginPath();
    context.arc(toX(group.last[at], width), TOP + (places.get(last?.rank) + 0.5) * high, 3, 0, 7);
    context.fillStyle = cssColour("--mark");
    context.fill();
  }
}

function setTogether({ from, to }) {
  const length = Math.max(SHORTEST, Math.min(to - from, 1.05 * together.end));
  const start = Math.max(-0.02 * together.end, Math.min(from, 1.03 * together.end - length));
  [together.from, together.to] = [start, start + length];
  drawTogether();
}

const MOVES = { ...spanMoves(together, setTogether), fit: () => setTogether({ from: 0, to: 1.02 * together.end }) };

function nsAt(event) {
  const box = byId("together-canvas").getBoundingClientRect();
  return together.from + ((event.clientX - box.left - LEFT) / (box.width - LEFT)) * (together.to - together.from);
}

// The collective of a rank under the pointer.
function collectiveAt(event) {
  const box = byId("together-canvas").getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top - TOP) / rowHeight());
  const rank = map.order[row];
  const near = (3 * (together.to - together.from)) / Math.max(box.width - LEFT, 1);
  for (const group of together.groups) {
    const own = group.rows.find((other) => other.rank === rank);
    const at = own ? firstAbove(own.start, nsAt(event) + near) - 1 : -1;
    if (own && at >= 0 && own.start[at] + own.length[at] >= nsAt(event) - near)
      return { group, at, row, rank, start: own.start[at], length: own.length[at] };
  }
  return null;
}

// The rank and the moment under the pointer, and what its GPU does there.
function workAt(event) {
  const box = byId("together-canvas").getBoundingClientRect();
  const rank = map.order[Math.floor((event.clientY - box.top - TOP) / rowHeight())];
  const text = rank === undefined || event.clientX < box.left + LEFT ? "" : workText(rank, nsAt(event));
  return text && `${rankLabel(rank)} · ${text}`;
}

function isOverWork(event) {
  const y = event.clientY - byId("together-canvas").getBoundingClientRect().top - TOP;
  return isSplit() && y % rowHeight() < rowHeight() / 2;
}

function collectiveText({ group, at, rank, start, length }) {
  const last = group.rows.find((one) => one.start[at] === group.last[at]);
  const waited = Math.min(group.last[at] - start, length);
  const why = waited > 0 ? `waits ${duration(waited)} for ${rankLabel(last.rank)}` : "arrives last";
  return `${rankLabel(rank)} · ${group.kind(at)}, ${duration(length)} · ${why}`;
}

function watchTogether() {
  const stage = byId("together-stage");
  /** @type {{ x: number, from: number, to: number } | null} */
  let grabbed = null;
  stage.addEventListener("pointerdown", (event) => {
    grabbed = { x: event.clientX, from: together.from, to: together.to };
  });
  addEventListener("pointerup", () => {
    grabbed = null;
  });
  watchTip(stage, (event) => {
    const hit = isOverWork(event) ? null : collectiveAt(event);
    return hit ? collectiveText(hit) : workAt(event);
  });
  stage.addEventListener("pointermove", (event) => {
    if (grabbed) setTogether(shifted(grabbed, (grabbed.x - event.clientX) / (stage.clientWidth - LEFT)));
  });
  stage.addEventListener("click", (event) => {
    const hit = collectiveAt(event);
    if (!hit) return;
    selectCell(hit.row);
    byId("readout").textContent = collectiveText(hit);
  });
  stage.addEventListener("keydown", (event) => {
    const move = moveOfKey(event);
    if (!move) return;
    event.preventDefault();
    MOVES[move]();
  });
  watchWheel(stage, (event) => {
    if (isSideways(event)) setTogether(shifted(together, Math.sign(event.deltaX || event.deltaY) * 0.1));
    else setTogether(zoomed(together, event.deltaY < 0 ? 0.8 : 1.25, nsAt(event)));
  });
  for (const button of queryAll("[data-together]"))
    button.addEventListener("click", () => MOVES[button.dataset.together ?? ""]());
  addEventListener("resize", drawTogether);
}
