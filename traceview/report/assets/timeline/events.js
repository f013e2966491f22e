// The events of the area, or of the view, as a table. A click on a row selects its event, and the row of the selected event
// is marked and in sight.
import { firstAbove } from "../core/columns.js";
import { byId, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { durationColumn, sortableTable, textColumn } from "../core/table.js";
import { countText, momentText } from "../core/words.js";
import { bringInSight } from "./go.js";
import { visibleSources } from "./levels.js";
import { allRows, rowName } from "./rows.js";
import { select } from "./select.js";
import { area, selected, view } from "./state.js";
import { afterRedraw, setView } from "./view.js";

const MOST_EVENTS = 500;
const LISTED = ["stream", "call", "range", "projected", "sample"];

/** @type {{ all: any[], of: object | null, line: HTMLElement | null }} */
const events = { all: [], of: null, line: null };

// The first events of a stretch by start, how many there are, and whether some rows have merged events alone.
function eventsInside(from, to, ids) {
  const found = { all: /** @type {any[]} */ ([]), count: 0, merged: false };
  const rows = allRows().filter(({ id, kind }) => (ids ? ids.includes(id) : LISTED.includes(kind)));
  for (const item of rows)
    for (const lane of item.lanes)
      for (const { marks, bin } of visibleSources(lane, from, to)) {
        const first = firstAbove(marks.reach, from),
          last = firstAbove(marks.start, to);
        found.merged ||= bin > 0 && last > first;
        if (bin) continue;
        found.count += last - first;
        for (let i = first; i < Math.min(last, first + MOST_EVENTS); i++) found.all.push({ item, lane, marks, i, bin });
      }
  found.all.sort((a, b) => startOf(a) - startOf(b)).splice(MOST_EVENTS);
  return found;
}

const startOf = ({ marks, i }) => marks.start[i];

// A cell remembers its element, whose row is marked while the event is selected.
function eventCell(hit) {
  return (hit.cell = el("span", { class: "mono", text: page.names[hit.marks.name[hit.i]] ?? "" }));
}

function listEvents() {
  const [from, to] = area.result?.points ?? [view.from, view.to];
  const { all, count, merged } = eventsInside(from, to, area.result?.rows ?? null);
  Object.assign(events, { all, of: area.result ?? events.of, line: null });
  const columns = [
    textColumn("event", (hit) => page.names[hit.marks.name[hit.i]] ?? "", eventCell),
    textColumn("row", ({ item }) => rowName(item.id)),
    { ...durationColumn("start", startOf), scales: undefined, cell: (hit) => momentText(startOf(hit)) },
    durationColumn("duration", ({ marks, i }) => marks.end[i] - marks.start[i]),
  ];
  const cut = count > all.length ? `the first ${countText(all.length)} of ` : "";
  const text = `Events of ${area.result ? "the area" : "the view"}: ${cut}${countText(count)}${merged ? "; rows whose events are merged at this zoom are left out" : ""}`;
  byId("events").replaceChildren(
    el("h3", { text }),
    sortableTable("Listed events", columns, all, MOST_EVENTS, { open: openEvent }),
  );
}

// Selects the event; the view moves there if it is out of sight.
function openEvent(hit) {
  const [start, end] = [startOf(hit), hit.marks.end[hit.i]],
    air = Math.max(end - start, (view.to - view.from) / 2);
  if (start < view.from || end > view.to) setView(start - air, end + air);
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
  followSelection();
}

export function watchEvents() {
  afterRedraw.push(followSelection);
}
