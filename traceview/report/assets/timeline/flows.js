// What an event is connected with: a launch with its GPU work, an operation or a call with what it waited for, and a
// collective with the same one on the other GPUs.
import { eventCount, firstAbove } from "../core/columns.js";
import { page } from "../core/page.js";
import { duration } from "../core/words.js";
import { marksIn, visibleSources } from "./levels.js";
import { allRows } from "./rows.js";
import { selected } from "./state.js";

const NEAR_END = 20_000; // ns from the end of work to what waited for it: traceview/measure/queues.py

// GPU work and the call that launched it have the same process and correlation id.
export function partnersOf({ item, marks, i }) {
  const number = marks.correlation?.[i],
    kind = { stream: "call", call: "stream" }[item.kind];
  if (!number || !kind) return [];
  const found = [];
  for (const row of allRows())
    if (row.kind === kind && row.process === item.process)
      for (const lane of row.lanes) {
        const theirs = marksIn(lane.exact);
        if (theirs?.correlation?.includes(number))
          found.push({ row, marks: theirs, i: theirs.correlation.indexOf(number) });
      }
  return found;
}

// The same collective on the other GPUs: of the communication with its name, that which overlaps it longest.
export function peersOf({ item, marks, i }) {
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

/**
 * What an operation waited for: the work of another stream of its GPU that ended last before it, where its launch and its own
 * stream were ready earlier (blocking_times in traceview/measure/queues.py). A call that waits has what ended before it returned.
 * @param {import("../types").Hit} hit
 * @param {import("../types").Partner | undefined} launch the call that launched it
 * @returns {import("../types").Partner & { wait: number } | null}
 */
export function producerOf({ item, marks, i }, launch) {
  const isCall = item.kind === "call",
    until = isCall ? marks.end[i] : marks.start[i],
    from = isCall ? marks.start[i] : launch ? launch.marks.end[launch.i] : until;
  if (eventCount(marks, i) > 1 || from >= until || (isCall && !marks.waited?.[i])) return null;
  let [best, last, ready] = [/** @type {import("../types").Partner | null} */ (null), from, from];
  const rows = allRows().filter(({ kind, process }) => kind === "stream" && process === item.process);
  for (const row of isCall ? rows : rows.filter(({ group }) => group === item.group))
    for (const { marks: theirs, bin } of row.lanes.flatMap((lane) => visibleSources(lane, from, until, 0))) {
      let j = firstAbove(theirs.start, until) - 1;
      if (bin && firstAbove(theirs.reach, from) <= j) return null; // bins hide what ended last
      while (j >= 0 && theirs.end[j] > until) j--;
      if (j < 0 || bin || theirs.end[j] <= from) continue;
      if (row === item) ready = theirs.end[j];
      if (theirs.end[j] > last) [best, last] = [{ row, marks: theirs, i: j }, theirs.end[j]];
    }
  return best && best.row !== item && until - last <= NEAR_END ? { ...best, wait: last - ready } : null;
}

// Facts of the panel as [word, value].
export function flowFacts(hit) {
  const { producer, peers } = selected,
    name = producer && page.names[producer.marks.name[producer.i]];
  const waited = producer ? [["waited for", `${name} on ${producer.row.label}, ${duration(producer.wait)}`]] : [];
  return [...partnerFacts(hit), ...waited, ...(peers.length ? [["collective", peersText(hit, peers)]] : [])];
}

// A collective moves data once it has begun on every GPU.
function peersText({ marks, i }, peers) {
  const begins = peers.map((peer) => peer.marks.start[peer.i] - marks.start[i]),
    latest = Math.max(...begins),
    which = `the last of ${peers.length + 1} GPUs`;
  if (latest <= 0) return `begins on ${which}: the others wait for this one`;
  return `waits ${duration(latest)} for ${peers[begins.indexOf(latest)].row.group.label}, ${which} to begin it`;
}

function partnerFacts({ item, marks, i }) {
  const [first] = selected.partners,
    kind = eventCount(marks, i) > 1 ? "" : item.kind;
  if (first) {
    const [name, began] = [page.names[first.marks.name[first.i]], first.marks.start[first.i]];
    if (item.kind === "call")
      return [
        ["launched", `${name} on ${first.row.label}`],
        ["started", `${duration(began - marks.start[i])} after the call began`],
      ];
    return [
      ["launched by", `${name}, ${duration(first.marks.end[first.i] - began)}`],
      ["on thread", first.row.label],
      ["launched", `${duration(marks.start[i] - began)} before it started`],
    ];
  }
  const absent = "a call that is not in the capture or not on this page";
  return kind === "stream"
    ? [["launched by", marks.correlation?.[i] ? absent : "unknown: events here are merged"]]
    : [];
}
