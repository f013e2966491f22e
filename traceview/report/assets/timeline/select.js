// Selects an operation: its launch, its NVTX ranges and its neighbours.
import { firstAbove, eventCount } from "../core/columns.js";
import { actionButton, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { duration } from "../core/words.js";
import { leaveArea } from "./area.js";
import { bringInSight } from "./go.js";
import { detailRows, factValue, headline } from "./hover.js";
import { launchFacts } from "./launch.js";
import { marksIn, sourceAt, visibleSources } from "./levels.js";
import { partnersFromServer } from "./live.js";
import { showPanel } from "./panel.js";
import { allRows } from "./rows.js";
import { board, selected, view } from "./state.js";
import { schedule, setView } from "./view.js";

// GPU work and the call that launched it have the same process and correlation id.
function partnersInPage({ item, marks, i }) {
  const number = marks.correlation?.[i],
    kind = { stream: "call", call: "stream" }[item.kind];
  if (!number || !kind) return [];
  const found = [];
  for (const row of allRows())
    if (row.kind === kind && row.process === item.process)
      for (const lane of row.lanes) {
        const theirs = [marksIn(lane.exact), lane.live?.marks].find((marks) => marks?.correlation?.includes(number));
        if (theirs) found.push({ row, marks: theirs, i: theirs.correlation.indexOf(number) });
      }
  return found;
}

// The same collective on the other GPUs: of the communication with its name, that which overlaps it longest.
function peersInPage({ item, marks, i }) {
  if (item.kind !== "stream" || page.looks[marks.look[i]] !== "communication" || eventCount(marks, i) > 1) return [];
  const [start, end] = [marks.start[i], marks.end[i]],
    best = new Map();
  for (const row of allRows().filter(({ kind, group }) => kind === "stream" && group !== item.group))
    for (const theirs of row.lanes.map((lane) => marksIn(lane.exact)))
      for (let j = theirs ? firstAbove(theirs.reach, start) : 0; theirs && j < theirs.n && theirs.start[j] < end; j++) {
        const both = Math.min(end, theirs.end[j]) - Math.max(start, theirs.start[j]);
        if (theirs.name[j] === marks.name[i] && both > (best.get(row.group)?.both ?? 0))
          best.set(row.group, { row, marks: theirs, i: j, both });
      }
  return [...best.values()];
}

// The NVTX ranges that are open on a thread, outermost first; where it has none, those of the process's annotating thread.
function pathAt(part, process, at) {
  const own = openRanges(part, at);
  const of = page.timeline.annotating[process];
  return own.length || !of || of === part ? own.join(" › ") : openRanges(of, at).join(" › ");
}

function openRanges(part, at) {
  const names = [];
  for (const row of allRows()) {
    if (row.kind !== "range" || row.part !== part) continue;
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
  Object.assign(selected, { hit, partners: partnersInPage(hit), peers: peersInPage(hit) });
  leaveArea();
  if (page.live && !selected.partners.length && hit.marks.correlation?.[hit.i]) requestPartners(hit);
  showDetails(hit);
}

async function requestPartners(hit) {
  const partners = await partnersFromServer(hit);
  if (selected.hit !== hit) return;
  selected.partners = partners;
  showDetails(hit);
}

function showDetails(hit) {
  const call =
    hit.item.kind === "call"
      ? { row: hit.item, marks: hit.marks, i: hit.i }
      : hit.item.kind === "stream"
        ? selected.partners[0]
        : null;
  selected.path = call ? pathAt(call.row.part, call.row.process, call.marks.start[call.i]) : "";
  showSelected();
  schedule();
}

export function clearSelected() {
  if (!selected.hit) return;
  Object.assign(selected, { hit: null, partners: [], peers: [], path: "" });
  showPanel();
  schedule();
}

function partnerFacts(hit) {
  const [first] = selected.partners;
  if (hit.item.kind === "stream" && first) {
    const began = first.marks.start[first.i];
    return [
      ["launched by", `${page.names[first.marks.name[first.i]]}, ${duration(first.marks.end[first.i] - began)}`],
      ["on thread", first.row.label],
      ["launched", `${duration(hit.marks.start[hit.i] - began)} before it started`],
    ];
  }
  if (hit.item.kind === "call" && first)
    return [
      ["launched", `${page.names[first.marks.name[first.i]]} on ${first.row.label}`],
      ["started", `${duration(first.marks.start[first.i] - hit.marks.start[hit.i])} after the call began`],
    ];
  if (hit.item.kind !== "stream" || eventCount(hit.marks, hit.i) > 1) return [];
  return [
    [
      "launched by",
      hit.marks.correlation?.[hit.i]
        ? "a call that is not in the capture or not on this page"
        : "unknown: events here are merged",
    ],
  ];
}

function showSelected() {
  const { hit, partners, path } = selected;
  if (!hit) return;
  const pairs = [...detailRows(hit), ...partnerFacts(hit), ...launchFacts(hit), ...(path ? [["NVTX", path]] : [])];
  const where = hit.item.kind === "call" ? "Go to the GPU work" : "Go to the launch";
  const go = partners.length ? actionButton(where, {}, goToPartner) : null;
  const actions = el("p", { class: "actions" }, stepButton(-1, "◂ previous (,)"), stepButton(1, "next (.) ▸"), go);
  showPanel(
    el("div", { class: "panel-head" }, el("h3", { text: headline(hit) }), actions),
    el(
      "dl",
      { class: "facts-list" },
      ...pairs.map(([word, value]) => el("div", {}, el("dt", { text: word }), factValue(value))),
    ),
  );
}

function stepButton(step, text) {
  return actionButton(text, {}, () => stepSelected(step));
}

export function goToPartner() {
  const [{ row, marks, i }] = selected.partners;
  const { hit } = selected;
  if (!hit) return;
  const start = Math.min(marks.start[i], hit.marks.start[hit.i]),
    end = Math.max(marks.end[i], hit.marks.end[hit.i]);
  const air = (end - start) * 0.2 + 200;
  setView(start - air, end + air);
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
  const { start, end } = hit.marks,
    length = Math.max(view.to - view.from, 1.2 * (end[i] - start[i]));
  if (start[i] < view.from || end[i] > view.to)
    setView((start[i] + end[i]) / 2 - length / 2, (start[i] + end[i]) / 2 + length / 2);
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
    const marks = lane.live && lane.live.from <= start && lane.live.to >= end ? lane.live.marks : marksIn(lane.exact);
    for (let i = marks ? firstAbove(marks.start, start - 1) : 0; marks && i < marks.n && marks.start[i] === start; i++)
      if (marks.end[i] === end) return { item, lane, marks, i, bin: 0 };
  }
  return null;
}
