// The wheel scrolls the page. It acts on an area with Ctrl, sideways, or after a press into the area, until the reader
// presses or scrolls elsewhere.

/**
 * @param {HTMLElement} area
 * @param {(event: WheelEvent) => boolean} act returns whether anything changed; if not, the page scrolls
 * @param {(held: boolean) => void} changed called when a press gives the wheel to the area, or takes it away
 */
export function watchWheel(area, act, changed = () => {}) {
  let held = false;
  const hold = (now) => {
    if (held === now) return;
    held = now;
    changed(held);
  };
  const isInside = ({ target }) => target instanceof Node && area.contains(target);
  document.addEventListener("pointerdown", (event) => hold(isInside(event)));
  document.addEventListener("wheel", (event) => isInside(event) || hold(false), { passive: true });
  document.addEventListener("keydown", ({ key }) => key === "Escape" && hold(false));
  area.addEventListener(
    "wheel",
    (event) => {
      const withKey = event.ctrlKey || event.metaKey;
      if (!withKey && !held && !isSideways(event)) return;
      if (act(event) || withKey) event.preventDefault();
    },
    { passive: false },
  );
}

export function isSideways(event) {
  return event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
}
