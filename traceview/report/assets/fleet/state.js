// What the page was given, and what it shows at the moment.
import { byId } from "../core/dom.js";

export const content = JSON.parse(byId("content").textContent);

export const heat = { columns: 0, names: [], steady: [] };

export const map = { order: [], row: 0, column: 0, height: 18, figure: "own", found: null, image: null };
