// How a kernel was launched: its launch shape, and its place among the kernels of that shape.
import { loadedFigures } from "../charts/figures.js";
import { firstAbove } from "../core/columns.js";
import { bytesText, countText, duration } from "../core/words.js";
import { marksIn } from "./levels.js";
import { allRows } from "./rows.js";

// Facts of the panel as [word, value]; the order of a shape's values is that of _shape in report/analysis/charts.py.
export function launchFacts({ marks, i }) {
  const number = marks.shape?.[i],
    shape = number ? loadedFigures()?.shapes.find(([row]) => row === number) : null;
  if (!shape) return [];
  const [, , full, family, grid, block, registers, shared, count, , median] = shape;
  const length = marks.end[i] - marks.start[i];
  const times = median ? `, ${(length / median).toFixed(2)} times the median of ${duration(median)}` : "";
  return [
    ["family", family],
    ...(grid ? [["grid", grid]] : []),
    ...(block ? [["block", block]] : []),
    ...(registers === null ? [] : [["registers", countText(registers)]]),
    ...(shared === null ? [] : [["shared memory", bytesText(shared)]]),
    ["of this launch shape", rankText(number, marks.start[i], count) + times],
    ...(full ? [["full name", full]] : []),
  ];
}

// "3rd of 40" where the page has every kernel, otherwise "one of 40".
function rankText(number, start, count) {
  const lanes = allRows().flatMap((row) => (row.kind === "stream" ? row.lanes : []));
  if (!lanes.every((lane) => lane.whole && marksIn(lane.exact))) return `one of ${countText(count)}`;
  let [before, all] = [0, 0];
  for (const lane of lanes) {
    const marks = marksIn(lane.exact),
      first = firstAbove(marks.start, start - 1);
    for (let i = 0; marks.shape && i < marks.n; i++)
      if (marks.shape[i] === number) {
        all++;
        if (i < first) before++;
      }
  }
  return `${ordinal(before + 1)} of ${countText(all)}`;
}

function ordinal(number) {
  const last = number % 10,
    teen = Math.floor((number % 100) / 10) === 1;
  return countText(number) + (teen || last > 3 || !last ? "th" : ["st", "nd", "rd"][last - 1]);
}
