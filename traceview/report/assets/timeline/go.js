// Moves the timeline to a place: shows it with its own length on both sides, highlights it and scrolls to its row.
import { byId, queryAll } from "../core/dom.js";
import { drawnY, isStuck, revealRow, stuckHeight } from "./rows.js";
import { view } from "./state.js";
import { rebuild, setSpan } from "./view.js";

export function goTo(place) {
  view.lit = place;
  setSpan([place.start, place.end], 1, 500);
  queryAll("[aria-current]").forEach((one) => one.removeAttribute("aria-current"));
  bringInSight(place.rows);
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  byId("timeline").scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
}

// Unfolds the rows, and scrolls to the first.
export function bringInSight(ids) {
  const rows = ids.map(revealRow).filter(Boolean);
  rebuild();
  if (!rows.length) return;
  const [row] = rows,
    scroll = byId("scroll"),
    y = drawnY(row, scroll.scrollTop),
    stuck = stuckHeight();
  if (!isStuck(row) && (y < stuck || y + row.h > view.height))
    scroll.scrollTop = Math.max(0, row.y - stuck - (view.height - stuck) / 3);
}
