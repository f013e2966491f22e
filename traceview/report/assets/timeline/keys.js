// Keyboard and buttons of the timeline.
import { byId, queryAll } from "../core/dom.js";
import { clearArea, fitArea, keepArea, measureHere, showArea } from "./area.js";
import { stepHistory } from "./address.js";
import { toggleEvents } from "./events.js";
import { maximise } from "./height.js";
import { rowUnder } from "./hover.js";
import { clearLinked, stepLinked } from "./linked.js";
import { showHelp, showPanel } from "./panel.js";
import { hideRow, pinRow } from "./rows.js";
import { findNext } from "./search.js";
import { clearSelected, goToPartner, stepRow, stepSelected } from "./select.js";
import { area, pointer, selected, selectedSpan, view } from "./state.js";
import { fit, pan, rebuild, setSpan, zoom } from "./view.js";

const MOVES = {
  w: () => zoomAtPointer(0.7),
  s: () => zoomAtPointer(1 / 0.7),
  a: () => pan(-0.2),
  d: () => pan(0.2),
  0: fit,
  f: fitSelected,
  PageUp: () => scrollRows(-0.8),
  PageDown: () => scrollRows(0.8),
  n: () => step(1),
  N: () => step(-1),
  ".": () => stepSelected(1),
  ",": () => stepSelected(-1),
  ">": () => stepRow(1),
  "<": () => stepRow(-1),
  l: () => selected.partners.length && goToPartner(),
  m: measureHere,
  M: measureRow,
  c: keepArea,
  e: toggleEvents,
  p: () => changeRow(pinRow),
  h: () => changeRow(hideRow),
  Backspace: () => stepHistory(-1),
  z: maximise,
  "?": showHelp,
  Escape: clearAll,
};

// Steps through what is linked, or through the matches of what stands in the search field.
function step(by) {
  return stepLinked(by) || findNext(byId("search", HTMLInputElement).value, by);
}

// Keys that do what another does.
const SAME = { ArrowUp: "w", "+": "w", "=": "w", ArrowDown: "s", "-": "s", ArrowLeft: "a", ArrowRight: "d", Home: "0" };

// Keys that scroll a page act on the timeline only while it has the focus or the pointer.
const SCROLLING = new Set(["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "PageUp", "PageDown"]);

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

export function fitSelected() {
  const span = selectedSpan();
  if (area.result) fitArea();
  else if (span) setSpan(span, 1, 100);
  else fit();
}

function clearAll() {
  view.lit = null;
  clearLinked();
  clearSelected();
  clearArea();
  showPanel();
  queryAll("[aria-current]").forEach((one) => one.removeAttribute("aria-current"));
  rebuild();
}

export function watchKeys() {
  document.addEventListener("keydown", onKey);
  for (const button of queryAll("[data-press]"))
    button.addEventListener("click", () => MOVES[button.dataset.press ?? ""]());
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
  const move = MOVES[SAME[key] ?? key];
  if (!move || (SCROLLING.has(key) && !isAtTimeline(event))) return;
  event.preventDefault();
  move();
}

function isAtTimeline({ target }) {
  const takesArrows = target.closest("table, .figure, .kernels, .legend select");
  return target === byId("stage") || (!takesArrows && byId("frame").matches(":hover"));
}
