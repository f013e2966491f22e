// Time and events by name inside an area: from events where the page has all of them, otherwise from sums per bin.
import { chunks, firstAbove, readColumn } from "../core/columns.js";
import { page } from "../core/page.js";
import { holdsEveryEvent, marksIn } from "./levels.js";
import { allRows } from "./rows.js";

const TABLES = { stream: "kernel", projected: "projected", range: "range", call: "call", sample: "sample" };

// Returns { from, to, exact, tables }: for each table a map from a name to { time, started }; null where the area is
// narrower than the bins. `time` is ns inside the area, `started` counts the events that start in it. The table `row` has
// the ids of rows, and `stack` the numbers of stacks.
export function namesInside(from, to, ids) {
  const rows = allRows().filter((row) => row.kind in TABLES && (!ids || ids.includes(row.id)));
  if (holdsEveryEvent(rows, from, to)) return { from, to, exact: true, tables: exactSums(rows, from, to) };
  return binSums(rows, from, to);
}

function adder() {
  const tables = {};
  const addTo = (table, name, time, started) => {
    const known = (tables[table] ??= new Map()),
      sum = known.get(name);
    if (sum) {
      sum.time += time;
      sum.started += started;
    } else known.set(name, { time, started });
  };
  const add = (row, table, name, time, started) => {
    if (table !== "stack") addTo("row", row, time, started);
    else if (!name) return; // a stack that the page does not have
    addTo(table, name, time, started);
  };
  return { tables, add };
}

function exactSums(rows, from, to) {
  const { tables, add } = adder(),
    kernels = ["compute", "communication"].map((look) => page.looks.indexOf(look));
  for (const { id, kind, lanes } of rows)
    for (const lane of lanes) {
      const marks = marksIn(lane.exact);
      for (let i = marks ? firstAbove(marks.reach, from - 1) : 0; marks && i < marks.n && marks.start[i] < to; i++) {
        const time = Math.min(to, marks.end[i]) - Math.max(from, marks.start[i]),
          started = Number(marks.start[i] >= from);
        if (time <= 0 && !started) continue;
        const table = kind === "stream" && !kernels.includes(marks.look[i]) ? "copy" : TABLES[kind];
        add(id, table, marks.name[i], Math.max(0, time), started);
        if (marks.stack) add(id, "stack", marks.stack[i], Math.max(0, time), started);
      }
    }
  return tables;
}

function binSums(rows, from, to) {
  const { sums, summary_chunk } = page.timeline;
  if (!sums || !chunks[summary_chunk]) return null;
  const width = 2 ** sums.shift,
    first = Math.round(from / width),
    last = Math.min(sums.count, Math.round(to / width));
  if (last <= first) return null;
  const { tables, add } = adder(),
    ids = new Set(rows.map((row) => row.id));
  for (const { row, table, n, columns } of sums.rows) {
    if (!ids.has(row)) continue;
    const [cell, time, started] = ["cell", "time", "started"].map((name) =>
      readColumn(chunks[summary_chunk], columns[name], n),
    );
    for (let i = 0, at = 0; i < n; i++) {
      at += cell[i];
      const bin = Math.floor(at / sums.names);
      if (bin >= first && bin < last) add(row, table, at % sums.names, time[i], started[i]);
    }
  }
  return { from: first * width, to: last * width, exact: false, bin: width, tables };
}
