// Entry of the page of a comparison. Names come from captures and reach the page as text only.
import { actionButton, byId, el, headedSection, prose, queryAll } from "../core/dom.js";
import { page } from "../core/page.js";
import { LOOK_WORDS, partItem, partsBar, refreshColours, swatch, watchTheme } from "../core/palette.js";
import { sortableTable, unitColumn } from "../core/table.js";
import { watchTip } from "../core/tip.js";
import { countText, duration } from "../core/words.js";
import { showArea } from "./area.js";
import { draw, prepare } from "./draw.js";
import { fit, watchInput } from "./moves.js";
import { AXIS, LABELS, LANE, captures, content, iterationStart, view } from "./state.js";

const WORDS = { ...LOOK_WORDS, range: "NVTX range (one colour per name)" };

const NARROW = 6; // columns of a table that stands beside another
const FIRST_ROWS = 24;

function showTexts() {
  const { against } = content;
  page.file = [content.base, ...against.map((other) => other.file)].join(" → ");
  byId("title").textContent = page.file;
  byId("facts").textContent = content.how;
  for (const other of against) {
    const name = against.length > 1 ? `${other.file}: ` : "";
    const verdict = el("b", other.verdict);
    const options = { class: "verdict", "data-verdict": other.verdict };
    byId("verdicts").append(el("h2", options, verdict, `. ${name}${other.text}`));
    if (other.accounts) byId("accounts").append(el("p", name + other.accounts));
    for (const declared of other.tables) if (declared.rows.length) byId("tables").append(tableSection(name, declared));
  }
  byId("notes").append(...content.notes.map((text) => el("li", ...prose(text))));
}

// A bar for each capture, as long as its iteration, of the same parts.
function showBars() {
  const longest = Math.max(...content.bars.map(({ ns }) => ns), 1);
  for (const { file, ns, parts } of content.bars) {
    const bar = partsBar(file, parts, duration);
    bar.style.width = `${(100 * ns) / longest}%`;
    const name = el("b", { text: file, title: file });
    byId("bars").append(el("div.device-line", name, bar, el("span", duration(ns))));
  }
  const words = new Map(content.bars.flatMap(({ parts }) => parts.map((part) => [part.word, part.look])));
  const length = (bar, word) => duration(bar.parts.find((part) => part.word === word)?.ns ?? 0);
  for (const [word, look] of words)
    byId("parts").append(partItem(look, word, content.bars.map((bar) => length(bar, word)).join(" → ")));
}

function tableSection(name, { title, columns, rows, events }) {
  const made = columns.map((column, place) => unitColumn(column.title, column.unit, (row) => row[place]));
  if (events) made[0] = { ...made[0], cell: (row) => eventButton(row[0], events[rows.indexOf(row)]) };
  const options = { class: columns.length > NARROW ? "wide" : null };
  return headedSection(options, name + title, null, sortableTable(name + title, made, rows, FIRST_ROWS));
}

// Marks the kernels of a name in all timelines; a second click shows all again.
function eventButton(text, name) {
  const options = { class: "event mono", "aria-pressed": String(view.lit === name) };
  return actionButton(text, options, ({ currentTarget }) => {
    view.lit = view.lit === name ? null : name;
    for (const button of queryAll(".event")) button.setAttribute("aria-pressed", "false");
    currentTarget.setAttribute("aria-pressed", String(view.lit === name));
    draw();
  });
}

function showCaptures() {
  for (const capture of captures) {
    prepare(capture);
    const cut = capture.leftOut
      ? ` · the first ${countText(capture.events.length)} events; ${countText(capture.leftOut)} more are not drawn`
      : "";
    const style = { height: `${AXIS + capture.lanes.length * LANE}px` };
    capture.canvas = el("canvas", { role: "img", "aria-label": `Timeline of ${capture.file}`, style });
    watchTip(capture.canvas, (event) => tipText(capture, event));
    byId("timelines").append(el("div.capture", el("h3", capture.file + cut), capture.canvas));
  }
}

function tipText(capture, event) {
  const box = capture.canvas.getBoundingClientRect();
  const lane = Math.floor((event.clientY - box.top - AXIS) / LANE);
  const x = event.clientX - box.left;
  const hit = x >= LABELS && lane >= 0 && lane < capture.lanes.length ? eventAt(capture, lane, x) : null;
  if (!hit) return "";
  const [, start, length, look, name] = hit;
  const word = WORDS[capture.looks[look]] ?? capture.looks[look];
  const place = `${duration(start - iterationStart(capture))} after the start of the iteration`;
  return `${capture.names[name]} · ${word} · ${duration(length)}, ${place}`;
}

// The innermost event at a point: the one that began last.
function eventAt(capture, lane, x) {
  const nsPerPixel = (view.to - view.from) / (capture.canvas.getBoundingClientRect().width - LABELS);
  const at = iterationStart(capture) + view.from + (x - LABELS) * nsPerPixel;
  let best = null;
  for (const event of capture.events) {
    if (event[1] > at + 2 * nsPerPixel) break;
    if (event[0] === lane && event[1] + event[2] >= at - 2 * nsPerPixel) best = event;
  }
  return best;
}

function showLegend() {
  const looks = Object.keys(WORDS).filter((look) => captures.some((capture) => capture.looks.includes(look)));
  byId("legend").replaceChildren(...looks.map((look) => el("li", swatch(look), WORDS[look])));
}

function redraw() {
  refreshColours();
  showLegend();
  draw();
}

showTexts();
showBars();
showCaptures();
watchInput();
watchTheme(redraw);
refreshColours();
if (captures.length) {
  fit();
  showArea();
}
redraw();
document.documentElement.dataset.shown = "all";
document.documentElement.dataset.ready = "";
