// Figures between two moments: exact where the page holds every event, otherwise between the nearest borders of bins.
import { firstAbove, chunks, readColumn } from "../core/columns.js";
import { page } from "../core/page.js";
import { holdsEveryEvent, marksIn } from "./levels.js";
import { board } from "./state.js";

// Returns { from, to, exact, bin, devices }: each device has an id, DEVICE_SUMS, and its idle time by cause; times are ns.
export function measureRange(from, to) {
  const groups = board.groups.filter((group) => group.rows.some((row) => row.kind === "overlap"));
  const rows = groups.flatMap((group) => group.rows).filter(({ kind }) => ["overlap", "idle", "stream"].includes(kind));
  if (holdsEveryEvent(rows, from, to))
    return { from, to, exact: true, devices: groups.map((group) => measureGroup(group, from, to)) };
  return measureBins(from, to);
}

/**
 * The parts of the marks between two times.
 * @param {import("../types").Marks} marks
 * @param {number} from
 * @param {number} to
 * @param {(i: number) => boolean} test
 */
function clippedIntervals(marks, from, to, test = () => true) {
  const found = [];
  for (let i = firstAbove(marks.reach, from); i < marks.n && marks.start[i] < to; i++)
    if (test(i) && marks.end[i] > from) found.push([Math.max(from, marks.start[i]), Math.min(to, marks.end[i])]);
  return found;
}

// Intervals by start; those that touch are merged.
function mergedIntervals(found) {
  const merged = [];
  for (const [start, end] of found.sort((a, b) => a[0] - b[0])) {
    const last = merged[merged.length - 1];
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else merged.push([start, end]);
  }
  return merged;
}

function totalLength(found) {
  return found.reduce((sum, [start, end]) => sum + end - start, 0);
}

function overlapLength(left, right) {
  let sum = 0;
  for (let i = 0, j = 0; i < left.length && j < right.length; ) {
    sum += Math.max(0, Math.min(left[i][1], right[j][1]) - Math.max(left[i][0], right[j][0]));
    if (left[i][1] < right[j][1]) i++;
    else j++;
  }
  return sum;
}

function measureGroup(group, from, to) {
  const row = (kind) => group.rows.find((one) => one.kind === kind).lanes.map((lane) => marksIn(lane.exact));
  const [work, communication, others] = row("overlap"),
    [gaps] = row("idle"),
    memset = page.looks.indexOf("memset");
  const compute = mergedIntervals(clippedIntervals(work, from, to));
  const copies = mergedIntervals(clippedIntervals(others, from, to, (i) => others.look[i] !== memset));
  const kernels = ["compute", "communication"].map((look) => page.looks.indexOf(look));
  const made = {
    id: group.label,
    compute: totalLength(compute),
    communication: totalLength(mergedIntervals(clippedIntervals(communication, from, to))),
    copies: totalLength(copies),
    hidden: overlapLength(compute, copies),
    idle: totalLength(clippedIntervals(gaps, from, to)),
    kernels: 0,
    copy_count: 0,
    causes: {},
  };
  for (const stream of group.rows.filter((one) => one.kind === "stream"))
    for (const lane of stream.lanes) {
      const marks = marksIn(lane.exact);
      for (let i = firstAbove(marks.start, from - 1); i < marks.n && marks.start[i] < to; i++)
        if (kernels.includes(marks.look[i])) made.kernels++;
        else if (marks.look[i] !== memset) made.copy_count++;
    }
  for (let i = firstAbove(gaps.start, from - 1); i < gaps.n && gaps.start[i] < to; i++)
    for (const cause of Object.keys(page.cause_words))
      if (gaps[cause]?.[i]) made.causes[cause] = (made.causes[cause] ?? 0) + gaps[cause][i];
  return made;
}

const DEVICE_SUMS = ["compute", "communication", "copies", "hidden", "idle", "kernels", "copy_count"];

// Adds the sums per bin that report/timeline/sums.py wrote.
function measureBins(from, to) {
  const { shift, count: bins } = page.timeline.tally,
    width = 2 ** shift;
  const first = Math.min(bins, Math.round(from / width)),
    last = Math.min(bins, Math.max(first + 1, Math.round(to / width)));
  const devices = page.timeline.tally.devices.map(({ id, columns }) => {
    const sum = (name) => {
      const values = columns[name] && readColumn(chunks[page.timeline.summary_chunk], columns[name], bins);
      let all = 0;
      if (values) for (let i = first; i < last; i++) all += values[i];
      return all;
    };
    const sums = (names) => names.map((name) => [name, sum(name)]);
    const causes = Object.fromEntries(sums(Object.keys(page.cause_words)).filter(([, ns]) => ns));
    return { id, causes, ...Object.fromEntries(sums(DEVICE_SUMS)) };
  });
  return { from: first * width, to: last * width, exact: false, bin: width, devices };
}
