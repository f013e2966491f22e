// What the page was given, and what it shows at the moment.
import { byId } from "../core/dom.js";

/** @type {import("../types").FleetContent} */
export const content = JSON.parse(byId("content").textContent ?? "");

/** @type {import("../types").Heat} */
export const heat = { columns: 0, names: [], steady: [], scale: {} };

/**
 * The order of the ranks, the selected cell, the height of a row, and the heat map with one pixel per cell.
 * @type {{ order: number[], row: number, column: number, height: number, figure: import("../types").Figure, image: HTMLCanvasElement | null }}
 */
export const map = { order: [], row: 0, column: 0, height: 18, figure: "own", image: null };
