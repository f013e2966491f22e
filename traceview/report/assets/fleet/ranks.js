// Ranks down, iterations across: each rank's time by kind and the heat map, on one canvas that draws the visible rows.
import { byId, context2d, el } from "../core/dom.js";
import { canvasPattern, cssColour } from "../core/palette.js";
import { freshCanvas } from "../core/ruler.js";
import { fitted } from "../core/words.js";
import { heatImage } from "./scale.js";
import { content, heat, map } from "./state.js";

export const PARTS = [
  { key: "compute", look: "compute", words: "compute" },
  { key: "waiting", look: "d2h", words: "waiting in collectives, exposed", pattern: "slashed" },
  { key: "moving", look: "communication", words: "other exposed communication" },
  { key: "copies", look: "copy", words: "exposed copies and memsets", pattern: "checked" },
  { key: "idle", look: "idle_unknown", words: "idle", pattern: "striped" },
];

export const AXIS = 22;
const NAMES = 190;
const BARS = 250;
const SPACE = 12;
export const TALLEST = 30;
export const LOWEST = 0.4;
export const HIGH = 600;

function rankParts(rank) {
  const waiting = Math.min(rank.bare_wait, rank.exposed_communication);
  return {
    compute: rank.compute,
    waiting,
    moving: rank.exposed_communication - waiting,
    copies: rank.copies,
    idle: rank.idle,
  };
}

export function heatLeft(wide) {
  return Math.min(NAMES + BARS + SPACE, wide * 0.55);
}

export function drawMap() {
  const scroll = byId("scroll"),
    stage = byId("stage"),
    canvas = byId("canvas", HTMLCanvasElement);
  const whole = AXIS + map.order.length * map.height,
    high = Math.min(whole, HIGH),
    wide = scroll.clientWidth;
  scroll.style.height = high + 2 + "px";
  byId("spacer").style.height = whole + "px";
  stage.style.height = high + "px";
  paint(freshCanvas(canvas, wide, high), wide, high, scroll.scrollTop, map.height);
  document.documentElement.dataset.drawn = [
    map.figure,
    map.height.toFixed(2),
    map.row,
    map.column,
    Math.round(scroll.scrollTop),
  ].join(" ");
}

function paint(pen, wide, high, top, height) {
  const first = Math.floor(top / height),
    last = Math.min(map.order.length, Math.ceil((top + high - AXIS) / height)),
    left = heatLeft(wide);
  pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  pen.textBaseline = "middle";
  pen.fillStyle = cssColour("--card");
  pen.fillRect(0, 0, wide, high);
  pen.save();
  pen.beginPath();
  pen.rect(0, AXIS, wide, high - AXIS);
  pen.clip();
  paintHeat(pen, wide, left, top, height);
  paintBars(pen, left, first, last, top, height);
  paintNames(pen, first, last, top, height);
  paintCursor(pen, wide, left, top, height);
  pen.restore();
  paintAxis(pen, wide, left);
}

function paintHeat(pen, wide, left, top, height) {
  let image = heatImage();
  if (!image) return;
  // Rows of less than a pixel are averaged; columns are not.
  if (height < 1) {
    const lower = el("canvas", { width: heat.columns, height: Math.max(1, Math.round(map.order.length * height)) });
    context2d(lower).drawImage(image, 0, 0, lower.width, lower.height);
    image = lower;
  }
  pen.imageSmoothingEnabled = false;
  pen.drawImage(image, left, AXIS - top, wide - left, map.order.length * height);
}

function paintBars(pen, left, first, last, top, height) {
  const room = left - NAMES - SPACE,
    longest = Math.max(...content.ranks.map((rank) => rank.wall), 1),
    gap = height > 6 ? 2 : 0;
  const fills = PARTS.map(({ look, pattern }) => [
    cssColour("--" + look),
    pattern && height > 6 ? canvasPattern(pen, pattern) : null,
  ]);
  const step = Math.max(1, Math.round(1 / height));
  for (let row = first; row < last; row += step) {
    const parts = rankParts(content.ranks[map.order[row]]);
    let x = NAMES;
    const y = AXIS - top + row * height,
      from = height < 3 ? Math.round(y) : y + gap / 2;
    const high = height < 3 ? Math.max(Math.round(y + step * height) - from, 1) : height - gap;
    PARTS.forEach(({ key }, place) => {
      const length = (parts[key] / longest) * room;
      for (const fill of fills[place].filter(Boolean)) {
        pen.fillStyle = fill;
        pen.fillRect(x, from, length, high);
      }
      x += length;
    });
  }
}

// Draws names where there is room; the selected rank and stragglers first.
function paintNames(pen, first, last, top, height) {
  const every = Math.max(1, Math.ceil(14 / height));
  const wanted = [...Array(last - first).keys()].map((at) => first + at);
  const rank = (row) => content.ranks[map.order[row]];
  const weight = (row) => (row === map.row ? 3 : rank(row).straggler ? 2 : row % every === 0 ? 1 : 0);
  const taken = [];
  for (const row of wanted.filter(weight).sort((a, b) => weight(b) - weight(a) || a - b)) {
    const y = Math.max(AXIS - top + (row + 0.5) * height, AXIS + 6);
    if (taken.some((other) => Math.abs(other - y) < 13)) continue;
    taken.push(y);
    pen.fillStyle = cssColour(rank(row).straggler ? "--high" : row === map.row ? "--link" : "--ink");
    pen.fillText(fitted(pen, (rank(row).straggler ? "! " : "") + rank(row).label, NAMES - 16), 8, y);
  }
}

function paintCursor(pen, wide, left, top, height) {
  const y = AXIS - top + map.row * height;
  pen.strokeStyle = cssColour("--mark");
  pen.lineWidth = 2;
  pen.strokeRect(NAMES - 2, y - 1, left - NAMES - SPACE + 4, Math.max(height, 1) + 2);
  if (!heat.columns) return;
  const cell = (wide - left) / heat.columns;
  pen.strokeRect(left + map.column * cell - 1, y - 1, cell + 2, Math.max(height, 1) + 2);
}

function paintAxis(pen, wide, left) {
  pen.fillStyle = cssColour("--soft");
  pen.fillText("rank", 8, AXIS / 2);
  pen.fillText(fitted(pen, content.each ? "mean iteration" : "whole capture", left - NAMES - SPACE), NAMES, AXIS / 2);
  const cell = (wide - left) / Math.max(heat.columns, 1),
    every = Math.max(1, Math.ceil(52 / cell));
  for (let column = 0; column < heat.columns; column += every) {
    pen.fillStyle = cssColour("--grid");
    pen.fillRect(left + column * cell, AXIS - 5, 1, 5);
    pen.fillStyle = cssColour("--soft");
    pen.fillText(heat.names[column], left + column * cell + 3, AXIS / 2);
  }
}
