// Which level of a lane is drawn: bins of about one pixel, or every event where the page holds them.
import { firstAbove, chunks, decodeMarks } from "../core/columns.js";
import { board, view } from "./state.js";

// The marks of a piece, unpacked when they are first needed; null while their chunk has not arrived.
export function marksIn(piece) {
  if (!piece) return null;
  if (!piece.made && chunks[piece.chunk]) piece.made = decodeMarks(chunks[piece.chunk], piece.marks);
  return piece.made ?? null;
}

// The time of one pixel.
const perPixel = () => (view.to - view.from) / view.width;

// The marks of [from, to): pieces of the range, each with the coarsest bins of at most `each` ns, or with what is nearest to
// that; 0 is the finest. `bin` is the width of the bins in ns, or 0 where the marks are single events.
export function visibleSources(lane, from, to, each = perPixel()) {
  let level = null;
  for (const one of lane.levels) {
    if (level && 2 ** level.shift <= each) break; // coarse levels come first
    if (marksIn(one)) level = one;
  }
  const bin = level ? 2 ** level.shift : 0;
  const exact = level && bin <= each ? null : marksIn(lane.exact);
  if (!level) return exact ? [{ marks: exact, bin: 0, from, to }] : [];
  if (!exact) return [{ marks: marksIn(level), bin, from, to }];
  if (lane.whole) return [{ marks: exact, bin: 0, from, to }];
  return splitByCover(from, to).map((piece) => ({
    ...piece,
    marks: piece.full ? exact : marksIn(level),
    bin: piece.full ? 0 : bin,
  }));
}

// Splits a range where full detail begins and ends.
function splitByCover(from, to) {
  const pieces = [],
    { starts, ends } = board.cover;
  let at = from;
  for (let i = firstAbove(ends, from); i < starts.length && starts[i] < to; i++) {
    if (starts[i] > at) pieces.push({ from: at, to: starts[i], full: false });
    pieces.push({ from: Math.max(at, starts[i]), to: Math.min(to, ends[i]), full: true });
    at = Math.min(to, ends[i]);
  }
  if (at < to) pieces.push({ from: at, to, full: false });
  return pieces;
}

// Whether the page has every event of some rows in [from, to).
export function holdsEveryEvent(rows, from, to) {
  const covered = splitByCover(from, to).every((piece) => piece.full);
  return rows.every(({ lanes }) => lanes.every((lane) => (lane.whole || covered) && marksIn(lane.exact)));
}

// The marks that are drawn at a time, within one pixel.
export function sourceAt(lane, at) {
  const each = perPixel();
  return visibleSources(lane, view.from, view.to).find((one) => at >= one.from - each && at <= one.to + each) ?? null;
}
