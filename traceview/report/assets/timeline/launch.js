// How a kernel was launched: its launch shape, and its length among the kernels of that shape.
import { loadedFigures } from "../charts/figures.js";
import { bytesText, countText, duration } from "../core/words.js";

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
    ["of this launch shape", `one of ${countText(count)}${times}`],
    ...(full ? [["full name", full]] : []),
  ];
}
