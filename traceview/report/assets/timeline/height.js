// The height of the timeline: what the first screen leaves, at least half of the window; all of it on request; a third while
// the page scrolls below it, and less where a panel is open; or what the reader drags its lower edge to.
import { byId, queryAll } from "../core/dom.js";

const AROUND = 300; // pixels of the window that the maximised timeline leaves to its bar, strip and panel
const BELOW = 76; // pixels of the strip and the legend, and the air around them
const THIRD = 0.36;
const LOWEST = 140; // pixels of a timeline above an open panel
const PASSED = 20; // pixels that the page scrolls below the timeline before that is lower
const AIR = 8;

/** The height that was set last; another one is the reader's. And that of the open panels. */
const height = { set: "", panels: 0 };

const above = () => byId(byId("costliest").hidden ? "answer" : "costliest").getBoundingClientRect();

function firstScreen() {
  const top = above().bottom + scrollY + byId("frame").offsetTop;
  return Math.max(300, innerHeight / 2, innerHeight - top - BELOW);
}

const lower = () => Math.max(LOWEST, THIRD * innerHeight - height.panels);

// The height that rows grow to fill.
export function rowsRoom() {
  return isMaximised() ? innerHeight - AROUND : firstScreen();
}

// At most as tall as all rows.
export function sizeFrame(tall) {
  const { style } = byId("frame");
  if (style.height !== height.set) return;
  const most = document.documentElement.dataset.stuck ? lower() : firstScreen();
  style.height = height.set = `${Math.round(Math.min(tall, most))}px`;
}

function isMaximised() {
  return byId("timeline").classList.contains("maximised");
}

export function maximise() {
  const now = byId("timeline").classList.toggle("maximised");
  queryAll("[data-move=maximise]").forEach((button) => button.setAttribute("aria-pressed", String(now)));
}

/**
 * The timeline stays in sight while the page scrolls below it, and is lower then: the height that gets free becomes a margin,
 * so that nothing else moves. Links to what is below leave room for the lower timeline.
 * @param {() => void} changed
 */
export function watchHeight(changed) {
  const place = byId("timeline"),
    frame = byId("frame"),
    root = document.documentElement;
  let full = 0;
  const fill = () => {
    if (root.dataset.stuck) place.style.marginBottom = `${Math.max(0, full - place.offsetHeight)}px`;
    const around = place.offsetHeight - frame.offsetHeight + AIR;
    root.style.setProperty("--under", `${around + Math.min(frame.offsetHeight, lower())}px`);
  };
  const resized = () => {
    const panels = byId("panel").offsetHeight + byId("events").offsetHeight;
    if (panels !== height.panels) {
      height.panels = panels;
      if (root.dataset.stuck) changed();
    }
    fill();
  };
  const follow = () => {
    const stuck = above().bottom < -PASSED && getComputedStyle(place).position === "sticky";
    if (stuck === Boolean(root.dataset.stuck)) return;
    if (stuck) full = place.offsetHeight;
    else place.style.marginBottom = "";
    root.dataset.stuck = stuck ? "true" : "";
    changed();
    fill();
  };
  addEventListener("scroll", follow, { passive: true });
  new ResizeObserver(resized).observe(place);
}
