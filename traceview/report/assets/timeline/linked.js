// The linked selection: places that belong together, as the instances of a kernel, the matches of a search or the worst
// places of a finding. One is current; all are highlighted in the rows and in the strip; n and N go through them.
import { firstAbove } from "../core/columns.js";
import { actionButton, byId, el, prose, queryAll } from "../core/dom.js";
import { cssColour } from "../core/palette.js";
import { countText, duration, momentText } from "../core/words.js";
import { leaveArea } from "./area.js";
import { toX } from "./axis.js";
import { goTo } from "./go.js";
import { panelHeads, showPanel } from "./panel.js";
import { drawnY } from "./rows.js";
import { clearSelected, selectPlace } from "./select.js";
import { board, linked, view } from "./state.js";

/**
 * Selects a place of a group: the view moves there, and the panel shows it.
 * @param {import("../types").Linked} group
 * @param {import("../types").Place} place
 */
export function linkTo(group, place) {
  const found = group.places.findIndex(({ start, rows }) => start === place.start && rows[0] === place.rows[0]);
  if (found < 0) group.places = [place, ...group.places].sort((a, b) => a.start - b.start);
  const from = [...queryAll(":hover, main button:focus")].filter((one) => one.closest("main > :not(#timeline)"));
  Object.assign(linked, { group, rows: rowsOf(group.places), from: from.at(-1) ?? null });
  showLinked(found < 0 ? group.places.indexOf(place) : found);
}

// The places of each row by start, as far as highlights need them.
function rowsOf(places) {
  const byRow = new Map();
  for (const place of places)
    for (const row of place.rows) {
      if (!byRow.has(row)) byRow.set(row, []);
      byRow.get(row).push(place);
    }
  for (const [row, spans] of byRow) {
    spans.sort((a, b) => a.start - b.start);
    let far = -Infinity;
    byRow.set(row, { spans, reach: Float64Array.from(spans, ({ end }) => (far = Math.max(far, end))) });
  }
  return byRow;
}

/** @param {number} at */
function showLinked(at) {
  const { group } = linked,
    place = group.places[at],
    { title, words = "found", total = group.places.length } = group;
  linked.at = at;
  const more = total > group.places.length ? ` (${countText(total)} in the capture)` : "";
  byId("found").textContent = `${countText(at + 1)} of ${countText(group.places.length)} ${words}${more}`;
  clearSelected();
  leaveArea();
  if (group.content || !selectPlace(place))
    showPanel(
      el("h3", ...prose(title)),
      el("p", ...prose(place.text ?? `${duration(place.end - place.start)} from ${momentText(place.start)}`)),
      ...(group.content ?? []),
    );
  goTo(place);
  group.mark?.(place);
}

// Goes through the places and wraps around. Returns whether there are any.
export function stepLinked(by) {
  const count = linked.group?.places.length ?? 0;
  if (count) showLinked((linked.at + by + count) % count);
  return count > 0;
}

export function clearLinked() {
  Object.assign(linked, { group: null, rows: new Map(), from: null, at: -1 });
  byId("found").textContent = "";
}

function goBack() {
  linked.from?.scrollIntoView({ block: "center" });
  linked.from?.focus({ preventScroll: true });
}

panelHeads.push(() => {
  if (!linked.group) return [];
  const several = linked.group.places.length > 1;
  return [
    el(
      "p.actions.linked",
      several ? actionButton("◂ previous (N)", {}, () => stepLinked(-1)) : null,
      several ? actionButton("next (n) ▸", {}, () => stepLinked(1)) : null,
      linked.from ? actionButton("Back", { title: "Back to where the selection was made" }, goBack) : null,
    ),
  ];
});

// The pixels of the places of a row, those that touch as one.
function runsOf({ spans, reach }, [from, to], x) {
  const runs = [];
  for (let i = firstAbove(reach, from); i < spans.length && spans[i].start <= to; i++) {
    const left = x(spans[i].start),
      right = Math.max(left + 2, x(spans[i].end)),
      last = runs.at(-1);
    if (last && left <= last[1] + 0.5) last[1] = Math.max(last[1], right);
    else runs.push([left, right]);
  }
  return runs;
}

export function drawLinked(context, { top }) {
  for (const item of board.shown) {
    const found = linked.rows.get(item.id);
    if (!found) continue;
    const y = drawnY(item, top);
    for (const [left, right] of runsOf(found, [view.from, view.to], toX)) {
      context.globalAlpha = 0.2;
      context.fillStyle = cssColour("--glow");
      context.fillRect(left, y + 1, right - left, item.h - 2);
      context.globalAlpha = 1;
      context.fillStyle = cssColour("--mark");
      context.fillRect(left, y + item.h - 3, right - left, 2);
    }
  }
}

export function drawLinkedStrip(pen, x, tall) {
  pen.fillStyle = cssColour("--mark");
  for (const found of linked.rows.values())
    for (const [left, right] of runsOf(found, view.whole, x)) pen.fillRect(left, 0, right - left, tall);
}
