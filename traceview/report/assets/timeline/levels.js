// Which level of a lane is drawn: bins of about one pixel, or every event where the page holds them.
import { firstAbove, chunks, decodeMarks } from "../core/columns.js";
import { board, view } from "./state.js";

// The marks of a piece, unpacked when they are first needed; null while their chunk has not arrived.
export function marksIn(piece) {
  if (!piece) return null;
  if (!piece.made && chunks[piece.chunk]) piece.made = decodeMarks(chunks[piece.chunk], piece.marks);
  return piece.made ?? null;
}

// The server's marks, if they cover the range and are at least as fine as the screen.
export function liveMarks(lane, from, to) {
  const each = (view.to - view.from) / view.width,
    found = lane.live;
  return !lane.whole && found && found.from <= from && found.to >= to && found.bin <= each
    ? { marks: found.marks, bin: found.bin }
    : null;
}

// What to draw in [from, to): pieces of the range, each with the most detailed marks that are useful.
// `bin` is the width of the bins in ns, or 0 where the marks are single events.
export function visibleSources(lane, from, to) {
  const each = (view.to - view.from) / view.width;
  const live = liveMarks(lane, from, to);
  if (live) return [{ ...live, from, to }];
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

// Whether the page has every event of [from, to).
export function holdsEveryEvent(lanes, from, to) {
  return lanes.every(
    (lane) =>
      (lane.whole && marksIn(lane.exact)) ||
      (splitByCover(from, to).every((piece) => piece.full) && marksIn(lane.exact)),
  );
}

// The marks that are drawn at a time, within one pixel.
export function sourceAt(lane, at) {
  const each = (view.to - view.from) / view.width;
  return visibleSources(lane, view.from, view.to).find((one) => at >= one.from - each && at <= one.to + each) ?? null;
}
