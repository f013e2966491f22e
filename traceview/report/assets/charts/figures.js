// The figures of charts, of the tables of kernels and of stacks, unpacked once.
import { inflateText } from "../core/columns.js";

/** @type {{ figures: any }} */
const unpacked = { figures: null };

export async function chartFigures() {
  unpacked.figures ??= JSON.parse(await inflateText("charts-data"));
  return unpacked.figures;
}

// The figures, or null until they are unpacked.
export function loadedFigures() {
  return unpacked.figures;
}
