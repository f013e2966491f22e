// Search by name. A page that holds every event searches them all; a summarised page searches the places that index.py chose.
import { chunks, readColumn, runningSum } from "../core/columns.js";
import { byId } from "../core/dom.js";
import { page } from "../core/page.js";
import { countText } from "../core/words.js";
import { goTo } from "./go.js";
import { marksIn } from "./levels.js";
import { findOnServer } from "./live.js";
import { allRows, setFilter } from "./rows.js";
import { selectPlace } from "./select.js";
import { view } from "./state.js";
import { rebuild } from "./view.js";

/** @type {{ text: string, places: import("../types").Place[], total: number, first: number, at: number }} */
export const search = { text: "", places: [], total: 0, first: 0, at: -1 };

// Finds every place whose name contains the text, in order of time.
async function lookUp(text) {
  const wanted = text.trim().toLowerCase();
  if (search.text === wanted) return;
  Object.assign(search, { text: wanted, places: [], total: 0, at: -1 });
  if (!wanted) return;
  if (page.live) return void Object.assign(search, await findOnServer(wanted));
  const fitting = new Set(page.names.flatMap((name, number) => (name.toLowerCase().includes(wanted) ? [number] : [])));
  if (page.timeline.index) searchIndex(fitting);
  else
    for (const row of allRows())
      if (SEARCHED.has(row.kind)) for (const lane of row.lanes) searchMarks(row, marksIn(lane.exact), fitting);
  search.places.sort((a, b) => a.start - b.start || a.end - b.end);
}

const SEARCHED = new Set(["ruler", "stream", "call", "range", "sample"]);

function searchMarks(row, marks, fitting) {
  for (let i = 0; i < (marks?.n ?? 0); i++)
    if (fitting.has(marks.name[i])) search.places.push({ start: marks.start[i], end: marks.end[i], rows: [row.id] });
  search.total = search.places.length;
}

function searchIndex(fitting) {
  const buffer = chunks[page.timeline.summary_chunk];
  if (!buffer || !page.timeline.index) return;
  const { n, rows, columns } = page.timeline.index;
  const [name, total, row, start, length] = ["name", "count", "row", "start", "length"].map((one) =>
    readColumn(buffer, columns[one], n),
  );
  const begin = runningSum(start);
  for (let i = 0, at = 0, last = -1; i < n; i++) {
    at += name[i];
    if (!fitting.has(at)) continue;
    if (at !== last) search.total += total[i];
    last = at;
    search.places.push({ start: begin[i], end: begin[i] + length[i], rows: [rows[row[i]]] });
  }
}

// Goes to the next or previous result and wraps around; starts at the current result, or at the left edge of the view.
export async function findNext(text, step = 1) {
  await lookUp(text);
  const { places, total } = search;
  if (!search.text) return void (byId("found").textContent = "");
  if (!places.length) return void (byId("found").textContent = `no match for “${text.trim()}”`);
  const inSight = places.findIndex((one) => one.start >= view.from);
  const from = search.at >= 0 ? search.at + step : Math.max(0, inSight) - (step < 0 ? 1 : 0);
  search.at = ((from % places.length) + places.length) % places.length;
  byId("found").textContent = page.live
    ? `${countText(search.first + search.at + 1)} of ${countText(total)} found`
    : `${countText(search.at + 1)} of ${countText(places.length)} found` +
      (total > places.length ? ` (${countText(total)} in the capture)` : "");
  const place = places[search.at];
  selectPlace(place);
  goTo(place);
}

// Shows how many places match, and moves nothing.
async function countMatches(text) {
  await lookUp(text);
  const { text: wanted, total } = search;
  byId("found").textContent = !wanted ? "" : total ? `${countText(total)} found` : `no match for “${text.trim()}”`;
}

export function watchSearch() {
  const field = byId("search", HTMLInputElement);
  let typing;
  field.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => page.live || countMatches(field.value), 150);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") findNext(field.value, event.shiftKey ? -1 : 1);
    if (event.key !== "Escape") return;
    event.preventDefault(); // the browser would empty the field
    byId("stage").focus();
  });
  byId("filter").addEventListener("input", () => {
    setFilter(byId("filter", HTMLInputElement).value);
    rebuild();
  });
}
