// The view in the page's address, so that a link leads to a place: #t=FROM..TO in ns from the page's zero, &row= the selected row.
import { bringInSight } from "./go.js";
import { selected, view } from "./state.js";
import { setView } from "./view.js";

/** @type {{ timer: ReturnType<typeof setTimeout> | undefined, own: string }} */
const address = { timer: undefined, own: "" };

export function writeAddress() {
  clearTimeout(address.timer);
  address.timer = setTimeout(() => {
    const unmoved = Math.abs(view.from - view.first[0]) <= 1 && Math.abs(view.to - view.first[1]) <= 1;
    const place = `#t=${Math.round(view.from)}..${Math.round(view.to)}`;
    const wanted =
      unmoved && !selected.hit ? "" : place + (selected.hit ? `&row=${encodeURIComponent(selected.hit.item.id)}` : "");
    if (wanted === address.own || (!wanted && !location.hash.startsWith("#t="))) return;
    address.own = wanted;
    history.replaceState(null, "", wanted || location.pathname + location.search);
  }, 150);
}

// Go where the address says; anything else in it is left alone.
export function readAddress() {
  const found = location.hash.match(/^#t=(-?\d+)\.\.(-?\d+)(?:&row=([^&]*))?$/);
  if (!found || location.hash === address.own || Number(found[2]) <= Number(found[1])) return false;
  address.own = location.hash;
  setView(Number(found[1]), Number(found[2]));
  if (found[3]) bringInSight([decodeURIComponent(found[3])]);
  return true;
}

export function watchAddress() {
  addEventListener("hashchange", readAddress);
}
