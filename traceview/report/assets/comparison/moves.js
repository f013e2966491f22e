// Keyboard, pointer and buttons: all captures move, zoom and step together.
import { byId, queryAll } from "../core/dom.js";
import { watchWheel } from "../core/wheel.js";
import { draw } from "./draw.js";
import { LABELS, captures, currentIteration, view } from "./state.js";

const SHORTEST = 200; // ns
const ACTIONS = {
  before: () => step(-1),
  after: () => step(1),
  in: () => zoom(0.6),
  out: () => zoom(1 / 0.6),
  left: () => move(-0.2),
  right: () => move(0.2),
  fit,
};
const KEYS = {
  "[": "before",
  "]": "after",
  w: "in",
  s: "out",
  a: "left",
  d: "right",
  ArrowLeft: "left",
  ArrowRight: "right",
  "+": "in",
  "-": "out",
  0: "fit",
};

function setView(from, to) {
  const longest =
    1.2 * Math.max(...captures.map(({ iterations }) => iterations[iterations.length - 1][1] - iterations[0][0]));
  const length = Math.min(Math.max(to - from, SHORTEST), longest);
  const middle = Math.min(Math.max((from + to) / 2, -longest), longest);
  [view.from, view.to] = [middle - length / 2, middle + length / 2];
  draw();
}

function zoom(factor, about = (view.from + view.to) / 2) {
  setView(about - (about - view.from) * factor, about + (view.to - about) * factor);
}

function move(share) {
  const shift = (view.to - view.from) * share;
  setView(view.from + shift, view.to + shift);
}

export function fit() {
  const lengths = captures.map((capture) => {
    const [from, to] = capture.iterations[currentIteration(capture)];
    return to - from;
  });
  const length = Math.max(...lengths);
  setView(-0.02 * length, 1.02 * length);
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
    const shift = ((grabbed.x - event.clientX) * (grabbed.to - grabbed.from)) / (canvasBox().width - LABELS);
    setView(grabbed.from + shift, grabbed.to + shift);
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
  zoom(event.deltaY < 0 ? 0.8 : 1.25, view.from + share * (view.to - view.from));
  return view.from !== from || view.to !== to;
}

function onKey(event) {
  const action = KEYS[event.key] ?? KEYS[event.key.toLowerCase()];
  if (event.ctrlKey || event.metaKey || event.altKey || !action || event.target.closest(".table, input, select"))
    return;
  event.preventDefault();
  ACTIONS[action]();
}
