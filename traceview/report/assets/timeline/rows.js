// Where each row stands. Groups and the rows of an owner fold; rows are filtered; "more" rows show on request.
import { firstAbove } from "../core/columns.js";
import { byId } from "../core/dom.js";
import { visibleSources } from "./levels.js";
import { board, view } from "./state.js";

const HEIGHTS = { group: 23, ruler: 18, overlap: 40, counter: 34, stream: 22, call: 20, more: 22 };
const HEIGHT_OF_OTHERS = 17;

export function loadRows(timeline) {
  board.groups = timeline.groups.map((group, number) => ({
    ...group,
    number,
    folded: false,
    all: false,
    shut: new Set(),
  }));
  for (const group of board.groups) for (const row of group.rows) Object.assign(row, { group, folded: row.more });
  board.numbered = allRows();
  board.numbered.forEach((row, number) => Object.assign(row, { number }));
  board.cover = { starts: timeline.cover.map(([start]) => start), ends: timeline.cover.map(([, end]) => end) };
}

export function allRows() {
  return board.groups.flatMap((group) => group.rows);
}

function matchesFilter(row, group) {
  if (!board.filter) return true;
  return [row.label, row.note, row.id, group.label, ROW_WORDS[row.kind]].join(" ").toLowerCase().includes(board.filter);
}

const ROW_WORDS = {
  ruler: "iterations",
  overlap: "work",
  idle: "idle gaps",
  exposed: "exposed copies and communication",
  counter: "counter",
  stream: "stream",
  call: "api calls cuda",
  range: "nvtx ranges",
  sample: "stack samples lines",
  projected: "nvtx ranges on the gpu",
};

const STAYING = ["ruler", "overlap", "idle", "exposed"]; // kinds of rows that show without events, too

// Finds the rows without events in view, which fold away. Returns whether they are others than before.
export function findQuiet() {
  const before = board.quiet;
  board.quiet = new Set(
    board.numbered.filter((row) => !row.pinned && !STAYING.includes(row.kind) && !row.lanes.some(hasEvents)),
  );
  for (const row of board.numbered) if (row.owner && !board.quiet.has(row)) board.quiet.delete(headOf(row));
  return before.size !== board.quiet.size || [...before].some((row) => !board.quiet.has(row));
}

function hasEvents(lane) {
  return visibleSources(lane, view.from, view.to).some(({ marks }) => {
    const first = firstAbove(marks.reach, view.from);
    return first < marks.n && marks.start[first] <= view.to;
  });
}

// Places the rows so that they fill `room` pixels; they grow to at most twice their height. Rows that fold away count, so
// that heights stay when the view moves.
export function placeRows(room) {
  putRows(1, new Set());
  const stretch = Math.min(2, Math.max(1, room / board.height));
  board.tall = Math.ceil(board.height * stretch);
  putRows(stretch, board.quiet);
}

function putRows(stretch, quiet) {
  let y = 0;
  board.shown = [];
  const put = (item) => {
    item.y = y;
    item.h = Math.floor((HEIGHTS[item.kind] ?? HEIGHT_OF_OTHERS) * stretch);
    y += item.h;
    board.shown.push(item);
  };
  for (const group of board.groups) for (const row of group.rows) if (row.pinned && matchesFilter(row, group)) put(row);
  board.pinned = y;
  for (const group of board.groups) {
    const fitting = group.rows.filter((row) => !row.pinned && matchesFilter(row, group));
    if (!fitting.length) continue;
    if (group.label) put({ kind: "group", group, ...(group.folded && !board.filter ? summaryOf(group) : {}) });
    if (group.folded && !board.filter) continue;
    const still = fitting.filter((row) => quiet.has(row)),
      more = fitting.filter((row) => row.more || (still.length > 1 && still.includes(row)));
    for (const row of fitting) if ((group.all || board.filter || !more.includes(row)) && !isFoldedAway(row)) put(row);
    if (more.length && !board.filter) put({ kind: "more", group, more });
  }
  board.height = y + 4;
}

const MAX_PINNED = 0.6; // share of the height of the rows; if more is pinned, pinned rows scroll as the others

// The height of the rows that stay in sight.
export function stuckHeight() {
  return board.pinned <= MAX_PINNED * view.height ? board.pinned : 0;
}

export function isStuck(item) {
  return item.y < stuckHeight();
}

// Where a row is drawn when the rows are scrolled by `top`, and which place of the rows a point on the canvas shows.
export function drawnY(item, top) {
  return isStuck(item) ? item.y : item.y - top;
}

export function contentY(y, top) {
  return y < stuckHeight() ? y : y + top;
}

// A folded group shows the work of its GPU, or the calls of its first thread.
function summaryOf({ rows }) {
  const row = ["overlap", "call", "range"].map((kind) => rows.find((one) => one.kind === kind)).find(Boolean);
  return row ? { lanes: row.lanes, summary: row.kind } : {};
}

// A hidden row is one of the "more" rows of its group.
export function hideRow(row) {
  row.more = !row.more;
  row.pinned = false;
}

export function pinRow(row) {
  row.pinned = !row.pinned;
}

// Whether a row is the first of its owner, which stays visible when the rows of the owner fold.
export function isHead(row) {
  return row.owner && headOf(row) === row;
}

function headOf({ owner, group }) {
  return group.rows.find((row) => row.owner === owner);
}

// The name of a row among those of all groups.
export function rowName(id) {
  const row = board.numbered.find((one) => one.id === id);
  return row ? [row.group.label, row.label || headOf(row)?.label, row.note].filter(Boolean).join(" ") : id;
}

function isFoldedAway(row) {
  return row.owner && row.group.shut.has(row.owner) && !isHead(row);
}

// Unfolds what hides the row and returns it; null if there is no such row.
export function revealRow(id) {
  const row = board.numbered.find((one) => one.id === id);
  if (!row) return null;
  const { group } = row;
  group.folded = false;
  group.all ||= row.more;
  if (isFoldedAway(row)) group.shut.delete(row.owner);
  if (!matchesFilter(row, group)) setFilter("");
  return row;
}

export function rowAt(y) {
  return board.shown.find((item) => y >= item.y && y < item.y + item.h) ?? null;
}

export function setFilter(text) {
  board.filter = text.trim().toLowerCase();
  if (byId("filter", HTMLInputElement).value !== text) byId("filter", HTMLInputElement).value = text;
}
