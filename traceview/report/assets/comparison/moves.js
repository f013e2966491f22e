// Keyboard, pointer and buttons: all captures move, zoom and step together.
import { byId, queryAll } from "../core/dom.js";
import { moveOfKey, shifted, spanMoves, zoomed } from "../core/span.js";
import { watchWheel } from "../core/wheel.js";
import { draw } from "./draw.js";
import { LABELS, captures, currentIteration, view } from "./state.js";

const SHORTEST = 200; // ns
const ACTIONS = {
  before: () => step(-1),
  after: () => step(1),
  ...spanMoves(view, setView),
  fit,
};
const STEP_KEYS = { "[": "before", "]": "after" };

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
}

function canvasBox() {
  return captures[0].canvas.getBoundingClientRect();
}

export function watchInput() {
  const place = byId("timelines");
  let grabbed = null;
  place.addEventListener("pointerdown", (event) => {
    grabbed = { x: event.clientX, from: view.from, to: view.to };
  });
  addEventListener("pointerup", () => {
    grabbed = null;
  });
  addEventListener("pointermove", (event) => {
    if (!grabbed || !captures.length) return;
    setView(shifted(grabbed, (grabbed.x - event.clientX) / (canvasBox().width - LABELS)));
  });
  watchWheel(place, onWheel);
  addEventListener("keydown", onKey);
  for (const button of queryAll("[data-do]"))
    button.addEventListener("click", () => ACTIONS[button.dataset.do ?? ""]());
  addEventListener("resize", draw);
}

function onWheel(event) {
  const { from, to } = view;
  const box = canvasBox();
  const share = (event.clientX - box.left - LABELS) / (box.width - LABELS);
  setView(zoomed(view, event.deltaY < 0 ? 0.8 : 1.25, from + share * (to - from)));
  return view.from !== from || view.to !== to;
}

function onKey(event) {
  const action = moveOfKey(event, STEP_KEYS);
  if (!action || event.target.closest(".table, input, select")) return;
  event.preventDefault();
  ACTIONS[action]();
}
