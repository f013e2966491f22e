// Keyboard, pointer and buttons: all captures move, zoom and step together.
import { byId, queryAll } from "../core/dom.js";
import { moveOfKey, shifted, spanMoves, zoomed } from "../core/span.js";
import { watchWheel } from "../core/wheel.js";
import { draw } from "./draw.js";
import { showArea } from "./area.js";
import { AXIS, LABELS, captures, currentIteration, view } from "./state.js";

const SHORTEST = 200; // ns
const ACTIONS = {
  before: () => step(-1),
  after: () => step(1),
  ...spanMoves(view, setView),
  fit,
  area: () => setArea([view.from, view.to]),
  clear: () => setArea(null),
};
const STEP_KEYS = { "[": "before", "]": "after", m: "area", Escape: "clear" };

function setView({ from, to }) {
  const longest =
    1.2 * Math.max(...captures.map(({ iterations }) => iterations[iterations.length - 1][1] - iterations[0][0]));
  const length = Math.min(Math.max(to - from, SHORTEST), longest);
  const middle = Math.min(Math.max((from + to) / 2, -longest), longest);
  [view.from, view.to] = [middle - length / 2, middle + length / 2];
  draw();
}

export function fit() {
  const lengths = captures.map((capture) => {
    const [from, to] = capture.iterations[currentIteration(capture)];
    return to - from;
  });
  const length = Math.max(...lengths);
  setView({ from: -0.02 * length, to: 1.02 * length });
}

function step(by) {
  const most = Math.max(...captures.map(({ iterations, middle }) => iterations.length - 1 - middle));
  const least = -Math.max(...captures.map(({ middle }) => middle));
  view.step = Math.max(least, Math.min(most, view.step + by));
  draw();
  showArea();
}

function setArea(area) {
  view.area = area;
  draw();
  showArea();
}

function canvasBox() {
  return captures[0].canvas.getBoundingClientRect();
}

function momentAt(event) {
  const box = canvasBox();
  return view.from + ((event.clientX - box.left - LABELS) / (box.width - LABELS)) * (view.to - view.from);
}

// Follows the pointer; the tables follow when it is released.
function markArea(from, to) {
  view.area = from < to ? [from, to] : [to, from];
  draw();
}

function isOnRuler({ target, offsetX, offsetY }) {
  return target instanceof HTMLCanvasElement && offsetY < AXIS && offsetX > LABELS;
}

export function watchInput() {
  const place = byId("timelines");
  let grabbed = null;
  place.addEventListener("pointerdown", (event) => {
    grabbed = { x: event.clientX, from: view.from, to: view.to, mark: isOnRuler(event) ? momentAt(event) : null };
  });
  addEventListener("pointerup", () => {
    if (grabbed?.mark !== null) showArea();
    grabbed = null;
  });
  addEventListener("pointermove", (event) => {
    if (captures.length) place.style.cursor = isOnRuler(event) ? "col-resize" : "";
    if (!grabbed || !captures.length) return;
    if (grabbed.mark !== null) return markArea(grabbed.mark, momentAt(event));
    setView(shifted(grabbed, (grabbed.x - event.clientX) / (canvasBox().width - LABELS)));
  });
  watchWheel(place, (event) => setView(zoomed(view, event.deltaY < 0 ? 0.8 : 1.25, momentAt(event))));
  addEventListener("keydown", onKey);
  for (const button of queryAll("[data-do]"))
    button.addEventListener("click", () => ACTIONS[button.dataset.do ?? ""]());
  addEventListener("resize", draw);
}

function onKey(event) {
  const action = moveOfKey(event, STEP_KEYS);
  if (!action || event.target.closest(".table, input, select")) return;
  event.preventDefault();
  ACTIONS[action]();
}
