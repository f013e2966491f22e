// What each rank's GPU does in bins of time: the shares in which it computes, copies and communicates.
import { readColumn } from "../core/columns.js";
import { cssColour } from "../core/palette.js";
import { duration, fitted, percent } from "../core/words.js";
import { content } from "./state.js";

const CLASSES = [
  { key: "compute", look: "compute" },
  { key: "copies", look: "copy" },
  { key: "communication", look: "communication" },
];
const FULL = 255; // the share of a bin that is busy all the time
const MAX_CELLS = 30_000; // in a frame, of all ranks
const MIN_NAME = 60; // pixels of a run of bins with the same kernel

/** @type {Map<number, import("../types").RankWork>} */
const works = new Map();

/** @param {ArrayBuffer} buffer */
export function loadWork(buffer) {
  for (const { rank, start, width, count, names, kernel, ...columns } of content.work) {
    const sums = Object.fromEntries(CLASSES.map(({ key }) => [key, runningShares(buffer, columns[key], count)]));
    works.set(rank, { start, width, count, names, kernel: readColumn(buffer, kernel, count), sums });
  }
}

function runningShares(buffer, place, count) {
  const shares = readColumn(buffer, place, count);
  const sums = new Float64Array(count + 1);
  for (let i = 0; i < count; i++) sums[i + 1] = sums[i] + shares[i] / FULL;
  return sums;
}

export function workEnd() {
  return Math.max(0, ...[...works.values()].map(({ start, width, count }) => start + width * count));
}

/**
 * Draws the work of a rank into a box; `view` is the time in sight.
 * @param {CanvasRenderingContext2D} context
 * @param {number} rank
 * @param {{ from: number, to: number }} view
 * @param {{ left: number, right: number, top: number, height: number }} box
 */
export function drawWork(context, rank, view, box) {
  const work = works.get(rank);
  if (!work || box.height < 1) return;
  const perPixel = (view.to - view.from) / (box.right - box.left);
  const pixels = Math.max(1, Math.ceil(((box.right - box.left) * works.size) / MAX_CELLS));
  const bins = Math.max(1, Math.round((pixels * perPixel) / work.width));
  const first = Math.max(0, Math.floor((view.from - work.start) / work.width / bins) * bins);
  const toX = (bin) => box.left + (work.start + bin * work.width - view.from) / perPixel;
  for (let bin = first; bin < work.count && toX(bin) < box.right; bin += bins) {
    const next = Math.min(work.count, bin + bins);
    let y = box.top + box.height;
    for (const { key, look } of CLASSES) {
      const share = (work.sums[key][next] - work.sums[key][bin]) / (next - bin);
      const high = Math.min(share * box.height, y - box.top);
      if (high <= 0) continue;
      y -= high;
      context.fillStyle = cssColour("--" + look);
      const left = Math.round(toX(bin));
      context.fillRect(left, y, Math.max(1, Math.round(toX(next)) - left), high);
    }
  }
  if (bins === 1 && box.height > 12) drawKernelNames(context, work, first, toX, box);
}

// The name of a kernel where it runs longest in enough bins side by side.
function drawKernelNames(context, { kernel, names, count }, first, toX, box) {
  context.fillStyle = cssColour("--page");
  for (let bin = first; bin < count && toX(bin) < box.right; ) {
    let next = bin + 1;
    while (next < count && kernel[next] === kernel[bin]) next++;
    const [left, right] = [Math.max(toX(bin), box.left), Math.min(toX(next), box.right)];
    if (kernel[bin] && right - left > MIN_NAME)
      context.fillText(fitted(context, names[kernel[bin] - 1], right - left - 8), left + 4, box.top + box.height / 2);
    bin = next;
  }
}

// What a rank does at a moment, "" where that is unknown.
export function workText(rank, at) {
  const work = works.get(rank);
  const bin = work ? Math.floor((at - work.start) / work.width) : -1;
  if (!work || bin < 0 || bin >= work.count) return "";
  const shares = CLASSES.flatMap(({ key }) => {
    const share = work.sums[key][bin + 1] - work.sums[key][bin];
    return share > 0 ? [`${key} ${percent(share, 1)}`] : [];
  });
  const name = work.kernel[bin] ? `, mostly ${work.names[work.kernel[bin] - 1]}` : "";
  return `${shares.length ? shares.join(", ") : "idle"} of ${duration(work.width)}${name}`;
}
