// Selects an operation: its launch, its NVTX ranges and its neighbours.
import { firstAbove, eventCount } from "../core/columns.js";
import { actionButton, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { leaveArea } from "./area.js";
import { flowFacts, partnersOf, peersOf, producerOf } from "./flows.js";
import { bringInSight } from "./go.js";
import { detailRows, factValue, headline } from "./hover.js";
import { launchFacts } from "./launch.js";
import { marksIn, sourceAt, visibleSources } from "./levels.js";
import { showPanel } from "./panel.js";
import { allRows } from "./rows.js";
import { NOTHING, board, selected, view } from "./state.js";
import { schedule, setSpan } from "./view.js";

// The NVTX ranges that are open on a thread, outermost first; where it has none, those of the process's annotating thread.
function pathAt(owner, process, at) {
  const own = openRanges(owner, at);
  const of = page.timeline.annotating[process];
  return own.length || !of || of === owner ? own.join(" › ") : openRanges(of, at).join(" › ");
}

function openRanges(owner, at) {
  const names = [];
  for (const row of allRows()) {
    if (row.kind !== "range" || row.owner !== owner) continue;
    for (const lane of row.lanes) {
      const source = sourceAt(lane, at) ?? { marks: marksIn(lane.exact) },
        { marks } = source;
      for (let i = marks ? firstAbove(marks.reach, at) : 0; marks && i < marks.n && marks.start[i] <= at; i++)
        if (marks.end[i] > at && eventCount(marks, i) === 1) names.push(page.names[marks.name[i]]);
    }
  }
  return names;
}

export function select(hit) {
  if (!hit) return clearSelected();
  Object.assign(selected, { hit, partners: partnersOf(hit), peers: peersOf(hit) });
  leaveArea();
  const call = hit.item.kind === "call" ? { ...hit, row: hit.item } : selected.partners[0];
  selected.producer = producerOf(hit, selected.partners[0]);
  selected.path = call ? pathAt(call.row.owner, call.row.process, call.marks.start[call.i]) : "";
  showSelected();
  schedule();
}

export function clearSelected() {
  if (!selected.hit) return;
  Object.assign(selected, NOTHING);
  showPanel();
  schedule();
}

function showSelected() {
  const { hit, partners, producer, path } = selected;
  if (!hit) return;
  const pairs = [...detailRows(hit), ...flowFacts(hit), ...launchFacts(hit), ...(path ? [["NVTX", path]] : [])];
  const where = hit.item.kind === "call" ? "Go to the GPU work" : "Go to the launch";
  const go = (other, text) => (other ? actionButton(text, {}, () => goToPartner(other)) : null);
  const steps = [stepButton(-1, "◂ previous (,)"), stepButton(1, "next (.) ▸")];
  const actions = [...steps, go(partners[0], where), go(producer, "Go to what it waited for")];
  showPanel(
    el("div.panel-head", el("h3", headline(hit)), el("p.actions", ...actions)),
    el("dl.facts-list", ...pairs.map(([word, value]) => el("div", el("dt", word), factValue(value)))),
  );
}

function stepButton(step, text) {
  return actionButton(text, {}, () => stepSelected(step));
}

export function goToPartner({ row, marks, i } = selected.partners[0]) {
  const { hit } = selected;
  if (!hit) return;
  const start = Math.min(marks.start[i], hit.marks.start[hit.i]),
    end = Math.max(marks.end[i], hit.marks.end[hit.i]);
  setSpan([start, end], 0.2, 200);
  select({ item: row, lane: null, marks, i, bin: 0 });
  bringInSight([row.id]);
}

// Selects the next or previous mark of the row, and moves the view if that mark is out of sight.
export function stepSelected(step) {
  const { hit } = selected;
  if (!hit) return selectFirst();
  const i = hit.i + step;
  if (i < 0 || i >= hit.marks.n) return;
  select({ ...hit, i });
  const [start, end] = [hit.marks.start[i], hit.marks.end[i]];
  if (start < view.from || end > view.to) setSpan([start, end], 0.1, (view.to - view.from - end + start) / 2);
}

// Selects the mark nearest in time in the next or previous row that has any in view.
export function stepRow(step) {
  const { hit } = selected;
  if (!hit) return selectFirst();
  const at = (Math.max(view.from, hit.marks.start[hit.i]) + Math.min(view.to, hit.marks.end[hit.i])) / 2,
    rows = board.shown.filter((item) => item.lanes?.length && !item.summary);
  for (let place = rows.findIndex(({ id }) => id === hit.item.id) + step; rows[place]; place += step)
    for (const lane of rows[place].lanes ?? []) {
      const source = sourceAt(lane, at),
        first = source ? firstAbove(source.marks.reach, view.from) : 0;
      if (!source || first >= source.marks.n || source.marks.start[first] > view.to) continue;
      const i = Math.max(first, firstAbove(source.marks.start, at) - 1);
      select({ item: rows[place], lane, marks: source.marks, i, bin: source.bin });
      return bringInSight([rows[place].id]);
    }
}

// Without a selection, start at the first visible operation on the busiest stream.
function selectFirst() {
  const row = allRows().find((row) => row.kind === "stream" && row.lanes.length && board.shown.includes(row));
  const source = row && visibleSources(row.lanes[0], view.from, view.to)[0];
  if (!source) return;
  const i = Math.min(firstAbove(source.marks.reach, view.from), source.marks.n - 1);
  if (i >= 0) select({ item: row, lane: row.lanes[0], marks: source.marks, i, bin: source.bin });
}

// Selects a place and returns whether the page has it as a separate event.
export function selectPlace(place) {
  const hit = eventAt(place);
  select(hit);
  return hit !== null;
}

// The event of a place, if the page has it as a separate event.
export function eventAt({ start, end, rows }) {
  const item = allRows().find((one) => one.id === rows[0]);
  for (const lane of item?.lanes ?? []) {
    const marks = marksIn(lane.exact);
    for (let i = marks ? firstAbove(marks.start, start - 1) : 0; marks && i < marks.n && marks.start[i] === start; i++)
      if (marks.end[i] === end) return { item, lane, marks, i, bin: 0 };
  }
  return null;
}
