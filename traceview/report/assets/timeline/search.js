// Search by name. A page that holds every event searches them all; a summarised page searches the places that index.py chose.
import { chartFigures } from "../charts/figures.js";
import { chunks, readColumn, runningSum } from "../core/columns.js";
import { byId } from "../core/dom.js";
import { page } from "../core/page.js";
import { countText } from "../core/words.js";
import { marksIn } from "./levels.js";
import { linkTo, stepLinked } from "./linked.js";
import { allRows, setFilter } from "./rows.js";
import { eventAt } from "./select.js";
import { linked, view } from "./state.js";
import { rebuild } from "./view.js";

const SEARCHED = new Set(["ruler", "stream", "call", "range", "sample"]);

/** @type {{ text: string, group: import("../types").Linked | null }} */
const search = { text: "", group: null };

// Finds every place whose name contains the text, in order of time.
function lookUp(text) {
  const wanted = text.trim().toLowerCase();
  if (search.text === wanted) return;
  Object.assign(search, { text: wanted, group: null });
  if (!wanted) return;
  search.group = { title: wanted, ...placesNamed((name) => name.toLowerCase().includes(wanted), SEARCHED) };
}

/**
 * The places whose name passes a test, by start, and how many the capture has.
 * @param {(name: string) => boolean} test
 * @param {Set<string>} kinds kinds of rows
 * @param {Set<number>} shapes of launches; none for any
 */
function placesNamed(test, kinds, shapes = new Set()) {
  const fitting = new Set(page.names.flatMap((name, number) => (test(name) ? [number] : [])));
  if (page.timeline.index) return placesInIndex(fitting);
  const places = [];
  for (const row of allRows().filter(({ kind }) => kinds.has(kind))) {
    const rows = [row.id];
    for (const marks of row.lanes.map((lane) => marksIn(lane.exact)))
      for (let i = 0; i < (marks?.n ?? 0); i++)
        if (fitting.has(marks.name[i]) && (!shapes.size || shapes.has(marks.shape?.[i])))
          places.push({ start: marks.start[i], end: marks.end[i], rows });
  }
  return { places: places.sort(byStart), total: places.length };
}

function byStart(a, b) {
  return a.start - b.start || a.end - b.end;
}

// The launches of a row of the kernel table.
export async function launchesOf(row, by, place) {
  const { shapes } = await chartFigures(),
    hit = eventAt(place),
    own = by === "shape" ? hit?.marks.shape?.[hit.i] : 0;
  const like = shapes.filter(([number, name, full, family]) =>
    own ? number === own : by === "family" ? family === row.name : row.full ? full === row.full : name === row.name,
  );
  const names = new Set([row.name, ...like.map(([, name]) => name)]);
  return placesNamed((name) => names.has(name), new Set(["stream"]), new Set(like.map(([number]) => number)));
}

function placesInIndex(fitting) {
  const found = { places: /** @type {import("../types").Place[]} */ ([]), total: 0 };
  const buffer = chunks[page.timeline.summary_chunk];
  if (!buffer || !page.timeline.index) return found;
  const { n, rows, columns } = page.timeline.index;
  const [name, total, row, start, length] = ["name", "count", "row", "start", "length"].map((one) =>
    readColumn(buffer, columns[one], n),
  );
  const begin = runningSum(start);
  for (let i = 0, at = 0, last = -1; i < n; i++) {
    at += name[i];
    if (!fitting.has(at)) continue;
    if (at !== last) found.total += total[i];
    last = at;
    found.places.push({ start: begin[i], end: begin[i] + length[i], rows: [rows[row[i]]] });
  }
  found.places.sort(byStart);
  return found;
}

// Goes to the next or previous result; the first is that at the left edge of the view.
export function findNext(text, step = 1) {
  countMatches(text);
  const { group } = search;
  if (!group?.places.length) return;
  if (linked.group === group) return void stepLinked(step);
  const inSight = Math.max(
    0,
    group.places.findIndex((one) => one.start >= view.from),
  );
  const { places } = group;
  linkTo(group, places[(inSight - (step < 0 ? 1 : 0) + places.length) % places.length]);
}

// Shows how many places match, and moves nothing.
function countMatches(text) {
  lookUp(text);
  const { text: wanted, group } = search;
  byId("found").textContent = !wanted
    ? ""
    : group?.total
      ? `${countText(group.total)} found`
      : `no match for “${text.trim()}”`;
}

export function watchSearch() {
  const field = byId("search", HTMLInputElement);
  let typing;
  field.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => countMatches(field.value), 150);
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
