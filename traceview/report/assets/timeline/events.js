// The events of the area, or of the view, as a table. A click on a row selects its event, and the row of the selected event
// is marked and in sight.
import { eventCount, firstAbove } from "../core/columns.js";
import { byId, el } from "../core/dom.js";
import { durationColumn, sortableTable, textColumn } from "../core/table.js";
import { countText, momentText } from "../core/words.js";
import { bringInSight } from "./go.js";
import { headline } from "./hover.js";
import { visibleSources } from "./levels.js";
import { allRows, rowName } from "./rows.js";
import { select } from "./select.js";
import { area, selected, view } from "./state.js";
import { afterRedraw, setSpan } from "./view.js";

const MOST_EVENTS = 500;
const LISTED = ["stream", "call", "range", "projected", "sample"];

/** @type {{ all: any[], of: object | null, line: HTMLElement | null }} */
const events = { all: [], of: null, line: null };

// The first events of a stretch by start, how many there are, and whether some are bins, which stand for several events.
function eventsInside(from, to, ids) {
  const found = { all: /** @type {any[]} */ ([]), count: 0, merged: false };
  const rows = allRows().filter(({ id, kind }) => (ids ? ids.includes(id) : LISTED.includes(kind)));
  for (const item of rows)
    for (const lane of item.lanes)
      for (const { marks, bin, ...part } of visibleSources(lane, from, to, 0)) {
        const later = !bin && part.from > from, // what begins before is in the piece before
          first = later ? firstAbove(marks.start, part.from - 1) : firstAbove(marks.reach, part.from),
          last = Math.max(first, firstAbove(marks.start, part.to));
        found.count += last - first;
        found.merged ||= bin > 0 && last > first;
        for (let i = first; i < Math.min(last, first + MOST_EVENTS); i++) found.all.push({ item, lane, marks, i, bin });
      }
  found.all.sort((a, b) => startOf(a) - startOf(b)).splice(MOST_EVENTS);
  return found;
}

const startOf = ({ marks, i }) => marks.start[i];

// A cell remembers its element, whose row is marked while the event is selected.
function eventCell(hit) {
  return (hit.cell = el("span.mono", eventText(hit)));
}

function eventText(hit) {
  const count = eventCount(hit.marks, hit.i);
  return count > 1 ? `${countText(count)} events, ${headline(hit)}` : headline(hit);
}

function listEvents() {
  const [from, to] = area.result?.points ?? [view.from, view.to];
  const { all, count, merged } = eventsInside(from, to, area.result?.rows ?? null);
  Object.assign(events, { all, of: area.result ?? events.of, line: null });
  const columns = [
    textColumn("event", eventText, eventCell),
    textColumn("row", ({ item }) => rowName(item.id)),
    { ...durationColumn("start", startOf), scales: undefined, cell: (hit) => momentText(startOf(hit)) },
    durationColumn("duration", ({ marks, i }) => marks.end[i] - marks.start[i]),
  ];
  const cut = count > all.length ? `the first ${countText(all.length)} of ` : "",
    bins = merged ? " lines; this page has some events only in bins, which have a line each" : "";
  const text = `Events of ${area.result ? "the area" : "the view"}: ${cut}${countText(count)}${bins}`;
  byId("events").replaceChildren(
    el("h3", text),
    sortableTable("Listed events", columns, all, MOST_EVENTS, { open: openEvent }),
  );
}

// Selects the event; the view moves there if it is out of sight.
function openEvent(hit) {
  const [start, end] = [startOf(hit), hit.marks.end[hit.i]];
  if (start < view.from || end > view.to) setSpan([start, end], 1, (view.to - view.from) / 2);
  select(hit);
  bringInSight([hit.item.id]);
}

function followSelection() {
  const place = byId("events"),
    { hit } = selected;
  if (place.hidden) return;
  if (area.result && area.result !== events.of) listEvents();
  const same = (one) =>
    hit && one.item === hit.item && startOf(one) === startOf(hit) && one.marks.end[one.i] === hit.marks.end[hit.i];
  const line = events.all.find(same)?.cell?.closest("tr") ?? null;
  if (line === events.line) return;
  events.line?.removeAttribute("aria-current");
  line?.setAttribute("aria-current", "true");
  if (line) place.scrollTop = line.offsetTop - place.clientHeight / 2;
  events.line = line;
}

export function toggleEvents() {
  const place = byId("events");
  place.hidden = !place.hidden;
  if (!place.hidden) listEvents();
  place.scrollIntoView({ block: "nearest" });
  followSelection();
}

export function watchEvents() {
  afterRedraw.push(followSelection);
}
