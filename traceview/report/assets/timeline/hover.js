// The mark under the pointer, and its details.
import { loadedFigures } from "../charts/figures.js";
import { firstAbove, busyTime, eventCount } from "../core/columns.js";
import { byId, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { lookWord } from "../core/palette.js";
import { showTip, watchTip } from "../core/tip.js";
import { bandwidth, countText, duration, momentText, percent, bytesText } from "../core/words.js";
import { colours, tintFunction } from "./colours.js";
import { counterFacts } from "./counters.js";
import { sourceAt } from "./levels.js";
import { contentY, rowAt } from "./rows.js";
import { pointer, view } from "./state.js";
import { afterRedraw } from "./view.js";

function markAt(item, x, y) {
  if (!item?.lanes?.length || item.summary) return null;
  const place = Math.min(item.lanes.length - 1, Math.max(0, Math.floor(((y - item.y) / item.h) * item.lanes.length)));
  const each = (view.to - view.from) / view.width,
    at = view.from + x * each;
  const source = sourceAt(item.lanes[place], at);
  if (!source) return null;
  const { marks } = source;
  let best = null,
    nearest = 3 * each;
  const tintOf = tintFunction(item.kind, marks);
  for (let i = firstAbove(marks.reach, at - 3 * each), last = firstAbove(marks.start, at + 3 * each); i < last; i++) {
    if (colours.hidden[tintOf(i)]) continue;
    const away = at < marks.start[i] ? marks.start[i] - at : at > marks.end[i] ? at - marks.end[i] : 0;
    if (away <= nearest) {
      nearest = away;
      best = i;
    }
  }
  return best === null ? null : { item, lane: item.lanes[place], marks, i: best, bin: source.bin };
}

const BY_CAUSE = ["idle", "exposed"]; // kinds of rows

export function detailRows({ item, marks, i }) {
  const length = marks.end[i] - marks.start[i],
    look = page.looks[marks.look[i]];
  const several = eventCount(marks, i),
    busy = busyTime(marks, i);
  const what = item.kind === "projected" ? "NVTX range on the GPU" : lookWord(look);
  const rows = [
    ["what", several > 1 ? `${countText(several)} events merged, mostly ${what}` : what],
    ["start", momentText(marks.start[i])],
    ["duration", duration(length)],
  ];
  if (item.kind === "counter") return [...rows, ...counterFacts(item, marks, i)];
  if (several > 1) rows.push(["busy", `${duration(busy)}, ${percent(busy, length)} of the duration`]);
  if (marks.bytes?.[i]) rows.push(["bytes", bytesText(marks.bytes[i])], ["bandwidth", bandwidth(marks.bytes[i], busy)]);
  if (marks.operations?.[i]) rows.push(["GPU operations", countText(marks.operations[i])]);
  if (marks.host_memory?.[i]) rows.push(["host memory", page.memories[marks.host_memory[i] - 1]]);
  for (const [cost, word] of [
    ["waited", "GPU busy during call"],
    ["starved", "GPU idle during call"],
    ["refill", "restart gap"],
  ])
    if (marks[cost]?.[i]) rows.push([word, duration(marks[cost][i])]);
  if (item.kind === "idle")
    for (const cause of Object.keys(page.cause_words))
      if (marks[cause]?.[i]) rows.push([page.cause_words[cause], duration(marks[cause][i])]);
  if (marks.exposed?.[i]) rows.push(["exposed", page.names[marks.exposed[i] - 1]]);
  if (marks.awaited?.[i]) rows.push(["which waits for", page.names[marks.awaited[i] - 1]]);
  if (item.label && !BY_CAUSE.includes(item.kind)) rows.push([item.kind === "stream" ? "stream" : "row", item.label]);
  if (marks.correlation?.[i]) rows.push(["correlation", String(marks.correlation[i])]);
  if (marks.stack?.[i]) rows.push(["stack", stackText(marks.stack[i])]);
  return rows;
}

const MOST_FRAMES = 24;

// The frames of a stack, a line each, the innermost first.
function stackText(number) {
  const stacks = loadedFigures()?.samples;
  if (!stacks) return "";
  const frames = [];
  for (let at = number; at; at = stacks.caller[at - 1]) frames.push(stacks.frames[stacks.frame[at - 1]]);
  const more = frames.length - MOST_FRAMES;
  return more > 1 ? [...frames.slice(0, MOST_FRAMES), `${more} more`].join("\n") : frames.join("\n");
}

// A value of a list of facts; a stack has a line for each frame.
export function factValue(text) {
  return el("dd", { class: text.includes("\n") ? "lines" : null, text });
}

export function headline({ item, marks, i }) {
  const name = page.names[marks.name[i]] ?? "";
  if (BY_CAUSE.includes(item.kind)) return name ? `${item.kind} until ${name}` : item.kind;
  return eventCount(marks, i) > 1 ? `longest: ${name}` : name;
}

function inRows(event) {
  const box = byId("canvas").getBoundingClientRect();
  return { x: event.clientX - box.left, y: contentY(event.clientY - box.top, byId("scroll").scrollTop) };
}

export function rowUnder(event) {
  return rowAt(inRows(event).y);
}

export function hitAt(event) {
  const { x, y } = inRows(event);
  return markAt(rowAt(y), x, y);
}

function tipOf(event) {
  const hit = event.buttons ? null : hitAt(event);
  if (!hit) return [];
  const pairs = detailRows(hit).flatMap(([word, value]) => [el("dt", word), factValue(value)]);
  return [el("b", headline(hit)), el("dl", ...pairs)];
}

export function watchHover() {
  watchTip(byId("stage"), tipOf);
  // The tip follows the view: after a key or a wheel another mark is under the pointer.
  afterRedraw.push(() => {
    if (pointer.over && !pointer.last) showTip(pointer.over, tipOf(pointer.over));
  });
}
