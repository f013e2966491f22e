// What the page was given, and the range of time that all captures show.
import { byId } from "../core/dom.js";

/** @type {import("../types").ComparisonContent} */
export const content = JSON.parse(byId("content").textContent ?? "");
/** @type {import("../types").Capture[]} */
export const captures = JSON.parse(byId("data").textContent ?? "");
// From and to: ns after the beginning of the current iteration. Step: iterations after the median one.
// Lit: the name of the kernels that are marked. Area: the selected stretch, ns after the beginning of the iteration.
/** @type {{ from: number, to: number, step: number, lit: string | null, area: [number, number] | null }} */
export const view = { from: 0, to: 1, step: 0, lit: null, area: null };
export const LANE = 20; // pixels, as the next two
export const AXIS = 20;
export const LABELS = 190;

/**
 * The index of the iteration at the left edge: every capture is the same number of iterations after its median one.
 * @param {import("../types").Capture} capture
 */
export function currentIteration(capture) {
  return Math.max(0, Math.min(capture.iterations.length - 1, capture.middle + view.step));
}

/** @param {import("../types").Capture} capture */
export function iterationStart(capture) {
  return capture.iterations[currentIteration(capture)][0];
}
