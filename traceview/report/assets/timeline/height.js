// The height of the timeline: half of the window, all of it on request, a third while the page scrolls below it, or what
// the reader drags its lower edge to.
import { byId, queryAll } from "../core/dom.js";

const AROUND = 300; // pixels of the window that the maximised timeline leaves to its bar, strip and panel
const THIRD = 0.36;
const PASSED = 200; // pixels that the page scrolls below the timeline before that is lower

/** The height that was set last; another one is the reader's. */
const height = { set: "" };

const half = () => Math.max(300, innerHeight / 2);

// The height that rows grow to fill.
export function rowsRoom() {
  return isMaximised() ? innerHeight - AROUND : half();
}

// At most as tall as all rows.
export function sizeFrame(tall) {
  const { style } = byId("frame");
  if (style.height !== height.set) return;
  const most = document.documentElement.dataset.stuck ? THIRD * innerHeight : half();
  style.height = height.set = `${Math.min(tall, most)}px`;
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
 * so that nothing else moves.
 * @param {() => void} changed
 */
export function watchHeight(changed) {
  const place = byId("timeline"),
    { dataset } = document.documentElement;
  let full = 0;
  const fill = () => {
    if (dataset.stuck) place.style.marginBottom = `${Math.max(0, full - place.offsetHeight)}px`;
  };
  const follow = () => {
    const above = byId(byId("costliest").hidden ? "answer" : "costliest").getBoundingClientRect(),
      stuck = above.bottom < -PASSED && getComputedStyle(place).position === "sticky";
    if (stuck === Boolean(dataset.stuck)) return;
    if (stuck) full = place.offsetHeight;
    else place.style.marginBottom = "";
    dataset.stuck = stuck ? "true" : "";
    changed();
    fill();
  };
  addEventListener("scroll", follow, { passive: true });
  new ResizeObserver(fill).observe(place);
}
