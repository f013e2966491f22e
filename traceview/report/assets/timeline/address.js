// The view, the selection, the area and the open rows in the page's address, so that a link leads to them
// and the browser's back button returns to the view before. Times are ns from the page's zero.
import { leaveArea, showArea } from "./area.js";
import { bringInSight } from "./go.js";
import { isHead } from "./rows.js";
import { clearSelected, selectPlace } from "./select.js";
import { area, board, selected, view } from "./state.js";
import { afterRedraw, rebuild, setView } from "./view.js";

const SETTLED = 1000; // ms without a change, after which a new view is a new step of the history

/** @type {{ timer: ReturnType<typeof setTimeout> | undefined, own: string, at: number, read: boolean }} */
const address = { timer: undefined, own: "", at: 0, read: false };

const spanText = (from, to) => `${Math.round(from)}..${Math.round(to)}`;

function spanOf(text) {
  const match = (text ?? "").match(/^(-?\d{1,17})\.\.(-?\d{1,17})$/);
  return match && Number(match[2]) >= Number(match[1]) ? [Number(match[1]), Number(match[2])] : null;
}

// Numbers of rows or groups, joined by dots.
function numbersOf(text) {
  return new Set((text ?? "").split(".").filter(Boolean).map(Number));
}

function addressText() {
  const fields = new URLSearchParams(),
    { hit } = selected,
    join = (items) => items.map(({ number }) => number).join(".");
  const unmoved = Math.abs(view.from - view.first[0]) <= 1 && Math.abs(view.to - view.first[1]) <= 1;
  if (hit) {
    fields.set("row", hit.item.id);
    fields.set("at", spanText(hit.marks.start[hit.i], hit.marks.end[hit.i]));
  }
  if (area.result) fields.set("area", spanText(...area.result.points));
  if (area.result?.rows) fields.set("rows", join(board.numbered.filter(({ id }) => area.result.rows.includes(id))));
  for (const [name, rows] of Object.entries({
    fold: board.groups.filter((group) => group.folded),
    all: board.groups.filter((group) => group.all),
    pin: board.numbered.filter((row) => row.pinned),
    more: board.numbered.filter((row) => row.more !== row.folded),
    shut: board.numbered.filter((row) => row.group?.shut.has(row.owner) && isHead(row)),
  }))
    if (rows.length) fields.set(name, join(rows));
  const text = fields.toString();
  return unmoved && !text ? "" : `#t=${spanText(view.from, view.to)}${text ? "&" + text : ""}`;
}

function writeAddress() {
  clearTimeout(address.timer);
  address.timer = setTimeout(() => {
    const wanted = addressText();
    if (wanted === address.own || (!wanted && location.hash && !location.hash.startsWith("#t="))) return;
    const now = performance.now(),
      replaces = address.read || now - address.at < SETTLED;
    const depth = (history.state?.depth ?? 0) + (replaces ? 0 : 1);
    const change = replaces ? history.replaceState : history.pushState;
    change.call(history, { depth }, "", wanted || location.pathname + location.search);
    Object.assign(address, { own: wanted, at: now, read: false });
  }, 150);
}

// Goes where the address says; an address of something else is left alone.
function readAddress() {
  const { hash } = location;
  if (hash === address.own || (hash && !hash.startsWith("#t="))) return;
  const fields = new URLSearchParams(hash.slice(1)),
    span = hash ? spanOf(fields.get("t")) : view.first;
  if (!span || span[1] <= span[0]) return;
  Object.assign(address, { own: hash, read: true });
  setView(span[0], span[1]);
  openRows(fields);
  rebuild();
  const place = spanOf(fields.get("area")),
    numbers = numbersOf(fields.get("rows")),
    row = fields.get("row"),
    event = spanOf(fields.get("at"));
  clearSelected();
  leaveArea();
  if (place)
    showArea(place, numbers.size ? board.numbered.flatMap((one) => (numbers.has(one.number) ? one.id : [])) : null);
  if (row) bringInSight([row]);
  if (row && event) selectPlace({ start: event[0], end: event[1], rows: [row] });
}

function openRows(fields) {
  const [fold, all, shut, pin, more] = ["fold", "all", "shut", "pin", "more"].map((name) =>
    numbersOf(fields.get(name)),
  );
  for (const row of board.numbered) {
    row.pinned = pin.has(row.number);
    row.more = row.folded !== more.has(row.number);
  }
  for (const group of board.groups) {
    group.folded = fold.has(group.number);
    group.all = all.has(group.number);
    group.shut = new Set(group.rows.flatMap((row) => (shut.has(row.number) ? row.owner : [])));
  }
}

// Back and forward through the views of this page, never out of it.
export function stepHistory(by) {
  if (by > 0 || history.state?.depth > 0) history.go(by);
}

export function watchAddress() {
  addEventListener("hashchange", readAddress);
  addEventListener("popstate", readAddress);
  afterRedraw.push(writeAddress);
  return readAddress();
}
