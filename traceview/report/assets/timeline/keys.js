// Mouse, wheel, keyboard and buttons of the timeline.
import { byId, queryAll } from "../core/dom.js";
import { isSideways, watchWheel } from "../core/wheel.js";
import { clearArea, fitArea, followArea, keepArea, measureHere, showArea } from "./area.js";
import { addBookmark, bookmarkAt, nextBookmark, showBookmarks } from "./bookmarks.js";
import { stepHistory } from "./address.js";
import { hitAt, rowUnder } from "./hover.js";
import { showHelp } from "./panel.js";
import { contentY, hideRow, pinRow } from "./rows.js";
import { findNext } from "./search.js";
import { clearSelected, goToPartner, select, stepRow, stepSelected } from "./select.js";
import { area, board, pointer, selected, view } from "./state.js";
import { afterRedraw, fit, pan, rebuild, schedule, setView, zoom } from "./view.js";

const MOVES = {
  w: () => zoomAtPointer(0.7),
  ArrowUp: () => zoomAtPointer(0.7),
  "+": () => zoomAtPointer(0.7),
  "=": () => zoomAtPointer(0.7),
  s: () => zoomAtPointer(1 / 0.7),
  ArrowDown: () => zoomAtPointer(1 / 0.7),
  "-": () => zoomAtPointer(1 / 0.7),
  a: () => pan(-0.2),
  ArrowLeft: () => pan(-0.2),
  d: () => pan(0.2),
  ArrowRight: () => pan(0.2),
  Home: fit,
  0: fit,
  f: fitSelected,
  PageUp: () => scrollRows(-0.8),
  PageDown: () => scrollRows(0.8),
  n: () => findNext(byId("search", HTMLInputElement).value),
  N: () => findNext(byId("search", HTMLInputElement).value, -1),
  ".": () => stepSelected(1),
  ",": () => stepSelected(-1),
  ">": () => stepRow(1),
  "<": () => stepRow(-1),
  l: () => selected.partners.length && goToPartner(),
  m: measureHere,
  M: measureRow,
  c: keepArea,
  b: addBookmark,
  p: () => changeRow(pinRow),
  h: () => changeRow(hideRow),
  B: nextBookmark,
  Backspace: () => stepHistory(-1),
  "?": showHelp,
  Escape: clearAll,
};

// Keys that scroll a page act on the timeline only while it has the focus or the pointer.
const SCROLLING = new Set(["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "PageUp", "PageDown"]);

const BUTTONS = { left: "a", right: "d", in: "w", out: "s", fit: "Home", help: "?", measure: "m" };

function zoomAtPointer(factor) {
  zoom(factor, pointer.x ?? undefined);
}

// Pins or hides the row under the pointer, or that of the selection.
function changeRow(change) {
  const pointed = pointer.over && rowUnder(pointer.over),
    row = pointed?.lanes && !pointed.summary ? pointed : selected.hit?.item;
  if (!row) return;
  change(row);
  rebuild();
}

// The area of the visible time in the row of the selection alone.
function measureRow() {
  if (selected.hit) showArea([view.from, view.to], [selected.hit.item.id]);
}

function scrollRows(share) {
  byId("scroll").scrollTop += share * view.height;
}

function fitSelected() {
  const { hit } = selected;
  if (area.result) return fitArea();
  if (!hit) return fit();
  const start = hit.marks.start[hit.i],
    end = hit.marks.end[hit.i],
    air = Math.max(end - start, 100);
  setView(start - air, end + air);
}

function clearAll() {
  view.lit = null;
  clearSelected();
  clearArea();
  queryAll("[aria-current]").forEach((one) => one.removeAttribute("aria-current"));
  rebuild();
}

function momentAt(event) {
  const box = byId("canvas").getBoundingClientRect();
  return view.from + ((event.clientX - box.left) / box.width) * (view.to - view.from);
}

export function watchInput() {
  const stage = byId("stage");
  watchWheel(byId("frame"), onWheel, (held) => {
    byId("corner").textContent = held ? "wheel zooms · drag pans" : "Ctrl + wheel zooms";
  });
  stage.addEventListener("dblclick", (event) => (hitAt(event) ? fitSelected() : fit()));
  byId("axis").addEventListener("click", (event) => {
    const mark = bookmarkAt(event.offsetX);
    if (mark && !pointer.moved) showBookmarks(mark);
  });
  for (const area of [stage, byId("axis")]) {
    area.addEventListener("pointerdown", (event) => onPress(event, area !== stage || event.shiftKey));
    area.addEventListener("pointermove", onDrag);
    area.addEventListener("pointerup", (event) => onRelease(event, area === stage));
    area.addEventListener("pointercancel", () => Object.assign(pointer, { last: null }));
  }
  stage.addEventListener("pointermove", (event) => {
    pointer.over = event;
    pointer.x = momentAt(event);
    followArea(pointer.x);
  });
  afterRedraw.push(() => {
    if (pointer.over) pointer.x = momentAt(pointer.over);
  });
  stage.addEventListener("pointerleave", () => {
    Object.assign(pointer, { x: null, over: null });
  });
  document.addEventListener("keydown", onKey);
  byId("scroll").addEventListener("scroll", schedule);
  for (const button of queryAll("[data-move]"))
    button.addEventListener("click", () => MOVES[BUTTONS[button.dataset.move ?? ""]]());
  new ResizeObserver(() => rebuild()).observe(byId("frame"));
}

// Returns whether the view changed: at its limits the page scrolls.
function onWheel(event) {
  if (!event.target.closest("#stage, #axis")) return false;
  const { from, to } = view;
  const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 200 : 1;
  if (isSideways(event)) pan(((event.deltaX || event.deltaY) * unit) / view.width);
  else zoom(Math.exp(Math.max(-300, Math.min(300, event.deltaY * unit)) * 0.0022), momentAt(event));
  return view.from !== from || view.to !== to;
}

function onPress(event, selects) {
  if (event.button !== 0) return;
  Object.assign(pointer, { last: event, from: event, moved: false, selects });
  event.currentTarget.setPointerCapture(event.pointerId);
}

function onDrag(event) {
  const { last, from } = pointer;
  if (!last || !from) return;
  pointer.moved ||= Math.hypot(event.clientX - from.clientX, event.clientY - from.clientY) > 3;
  if (!pointer.moved) return;
  pointer.last = event;
  if (pointer.selects) return dragArea(from, event);
  const each = (view.to - view.from) / view.width,
    shift = (event.clientX - last.clientX) * each;
  setView(view.from - shift, view.to - shift);
  if (event.pointerType === "mouse") byId("scroll").scrollTop -= event.clientY - last.clientY;
}

// A drag on the ruler selects all rows, a drag on the rows those that it crosses.
function dragArea(from, event) {
  const { top } = byId("canvas").getBoundingClientRect(),
    { scrollTop } = byId("scroll");
  const [low, high] = [from, event].map(({ clientY }) => contentY(clientY - top, scrollTop)).sort((a, b) => a - b);
  const crossed = board.shown.filter((item) => item.lanes && !item.summary && item.y < high && item.y + item.h > low);
  const rows =
    from.currentTarget === byId("axis") || event.currentTarget === byId("axis") ? null : crossed.map((item) => item.id);
  Object.assign(area, { points: [momentAt(from), momentAt(event)], rows, moving: false, result: null });
  schedule();
}

function onRelease(event, onStage) {
  const { last, moved, selects } = pointer;
  pointer.last = null;
  if (last && moved && selects) showArea(area.points, area.rows);
  if (last && !moved && onStage) select(hitAt(event));
  schedule();
}

function onKey(event) {
  if (
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    byId("help", HTMLDialogElement).open ||
    event.target.closest("input, textarea, select")
  )
    return;
  if (event.key === "/") {
    event.preventDefault();
    byId("search", HTMLInputElement).select();
    return;
  }
  const key = event.key.length === 1 && !["N", "B", "M"].includes(event.key) ? event.key.toLowerCase() : event.key;
  if (!(key in MOVES) || (SCROLLING.has(key) && !isAtTimeline(event))) return;
  event.preventDefault();
  MOVES[key]();
}

function isAtTimeline({ target }) {
  const takesArrows = target.closest("table, .figure, .kernels, .legend select");
  return target === byId("stage") || (!takesArrows && byId("frame").matches(":hover"));
}
