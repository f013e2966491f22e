// The selected area: a stretch of time, of all rows or of some. A second area is compared with the one that was kept.
import { actionButton, el, softLine } from "../core/dom.js";
import { page } from "../core/page.js";
import { EXACT, duration, momentText } from "../core/words.js";
import { areaTables } from "./areatables.js";
import { measureRange } from "./measured.js";
import { namesInside } from "./namesums.js";
import { showPanel } from "./panel.js";
import { NOTHING, area, pointer, selected, selectedSpan, view } from "./state.js";
import { schedule, setSpan } from "./view.js";

// The first press of m sets one end at the pointer, the second the other. Without a pointer over the timeline, the area
// is the selection, the highlight or the visible range.
export function measureHere() {
  if (area.moving) {
    area.points[1] = Math.round(pointer.x ?? area.points[1] ?? view.to);
    return showArea(area.points);
  }
  if (pointer.x === null) return showArea(selectedSpan() ?? [view.from, view.to]);
  Object.assign(area, { points: [Math.round(pointer.x)], rows: null, moving: true, result: null });
  showPanel(el("p", `Measuring from ${momentText(area.points[0])}: press m at the other end, or Esc to cancel.`));
  schedule();
}

export function followArea(at) {
  if (!area.moving) return;
  area.points[1] = Math.round(at);
  schedule();
}

/**
 * Selects an area and shows its figures; `rows` are ids, null for all rows.
 * @param {number[]} points
 * @param {string[] | null} rows
 */
export function showArea(points, rows = null, title = "") {
  const [from, to] = points
    .map((at) => Math.min(Math.max(Math.round(at), 0), page.timeline.span[1]))
    .sort((a, b) => a - b);
  const result = { ...measureRange(from, to), rows, title, names: namesInside(from, to, rows), points: [from, to] };
  Object.assign(area, { points: [from, to], rows, moving: false, result });
  Object.assign(selected, NOTHING);
  showResult();
  schedule();
}

// Another selection takes the place of the area; the one that is kept for a comparison stays.
export function leaveArea() {
  Object.assign(area, { points: [], rows: null, moving: false, result: null });
}

export function clearArea() {
  if (!area.points.length && !area.kept) return;
  leaveArea();
  area.kept = null;
  if (!selected.hit) showPanel();
  schedule();
}

// Keeps the area as A, with which the next is compared; a second call lets go of it.
export function keepArea() {
  if (!area.result) return;
  area.kept = area.kept ? null : area.result;
  showResult();
  schedule();
}

export function fitArea() {
  setSpan(area.points, 0.05);
}

function areaTitle({ from, to, exact, rows, title }) {
  const length = exact ? EXACT.format((to - from) / 1e6) + " ms" : duration(to - from);
  const where = rows ? `, ${rows.length} ${rows.length === 1 ? "row" : "rows"}` : "";
  return `${title || "Area"}: ${length} from ${momentText(from)} to ${momentText(to)}${where}`;
}

function basisText({ exact, bin }) {
  return exact
    ? "exact to the nanosecond"
    : `rounded to bins of ${duration(bin)}; a larger page (--detail) measures more to the nanosecond`;
}

function showResult() {
  const { result, kept } = area,
    compared = kept && kept !== result ? kept : null;
  if (!result) return;
  showPanel(
    el(
      "div.panel-head",
      el(
        "div",
        ...(compared ? [el("h3", "A: " + areaTitle(compared))] : []),
        el("h3", (compared ? "B: " : "") + areaTitle(result)),
      ),
      softLine(basisText(result)),
      el(
        "p.actions",
        actionButton("Zoom to it (f)", {}, fitArea),
        actionButton(kept ? "End the comparison (c)" : "Compare with another (c)", {}, keepArea),
      ),
      kept === result ? softLine("This is A: select another area to compare.") : null,
    ),
    areaTables(result, compared, (id) => showArea(result.points, [id])),
  );
}
