// The tip beside the pointer: what is under it.
import { byId } from "./dom.js";

/**
 * Shows the content inside the window, or no tip without any.
 * @param {{ clientX: number, clientY: number }} pointer
 * @param {string | Node[]} content
 */
export function showTip({ clientX, clientY }, content) {
  const tip = byId("tip");
  tip.hidden = !content.length;
  tip.replaceChildren(...[content].flat());
  tip.style.left = "4px"; // where it is as wide as it needs
  const left = clientX + 16 + tip.offsetWidth > innerWidth ? clientX - tip.offsetWidth - 12 : clientX + 16;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, Math.min(clientY + 14, innerHeight - tip.offsetHeight - 8)) + "px";
}

/**
 * @param {HTMLElement} area
 * @param {(event: PointerEvent) => string | Node[]} contentAt
 */
export function watchTip(area, contentAt) {
  area.addEventListener("pointermove", (event) => showTip(event, contentAt(event)));
  area.addEventListener("pointerleave", () => {
    byId("tip").hidden = true;
  });
}
