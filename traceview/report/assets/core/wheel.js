// The wheel scrolls the page, and never a part of the area first. It acts on the area with Ctrl, sideways, or after a press
// into the area, until the reader presses or scrolls elsewhere; then it does not move the page.

/**
 * @param {HTMLElement} area
 * @param {(event: WheelEvent) => void | false} act returns false where the browser is to scroll
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
  area.addEventListener("wheel", (event) => wheelTurned(event, held, act), { passive: false });
}

function wheelTurned(event, held, act) {
  const withKey = event.ctrlKey || event.metaKey;
  if (withKey || held || isSideways(event)) return void ((act(event) !== false || withKey) && event.preventDefault());
  const inner = event.target.closest(".scroll");
  if (!inner || inner.scrollHeight <= inner.clientHeight) return;
  event.preventDefault();
  scrollBy({ top: wheelPixels(event, event.deltaY), behavior: "instant" });
}

export function wheelPixels({ deltaMode }, delta) {
  return delta * [1, 16, 200][deltaMode];
}

export function isSideways(event) {
  return event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
}
