// Entry of the page of a comparison. Names come from captures and reach the page as text only.
import { byId, context2d, el } from "../core/dom.js";
import { LOOK_WORDS, refreshColours, watchTheme } from "../core/palette.js";
import { draw, patternFill, prepare } from "./draw.js";
import { fit, watchInput } from "./moves.js";
import { AXIS, LABELS, LANE, captures, content, iterationStart, time, view } from "./state.js";

const NARROW = 6; // columns of a table that stands beside another

const WORDS = { ...LOOK_WORDS, range: "NVTX range (one colour per name)" };

function showTexts() {
  byId("title").textContent = [content.base, ...content.against.map((other) => other.file)].join(" → ");
  for (const other of content.against) {
    const text = ` · ${other.file}: ${other.text} ${other.accounts}`;
    byId("verdicts").append(
      el("p", { class: "verdict", "data-verdict": other.verdict }, el("b", { text: other.verdict }), text),
    );
    const prefix = content.against.length > 1 ? `${other.file} · ` : "";
    for (const { title, head, rows } of other.tables)
      if (rows.length) byId("tables").append(tableSection(prefix + title, head, rows));
  }
  const how = [content.how, ...content.against.map((other) => `${other.file}: ${other.how}`)];
  byId("verdicts").append(el("p", { class: "soft", text: how.join(" · ") }));
  byId("notes").append(...content.notes.map((text) => el("li", { text })));
}

function tableSection(title, head, rows) {
  const table = el(
    "table",
    {},
    el("tr", {}, ...head.map((text) => el("th", { text, scope: "col" }))),
    ...rows.map((row) => el("tr", {}, ...row.map((text) => el("td", { text })))),
  );
  const scroll = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, table);
  return el("section", { class: head.length > NARROW ? "wide" : null }, el("h2", { text: title }), scroll);
}

function showCaptures() {
  for (const capture of captures) {
    prepare(capture);
    const cut = capture.leftOut
      ? ` · the first ${capture.events.length.toLocaleString("en")} events; ${capture.leftOut.toLocaleString("en")} more are not drawn`
      : "";
    capture.canvas = el("canvas", { role: "img", "aria-label": `Timeline of ${capture.file}` });
    capture.canvas.style.height = `${AXIS + capture.lanes.length * LANE}px`;
    capture.canvas.addEventListener("pointermove", (event) => showTip(capture, event));
    capture.canvas.addEventListener("pointerleave", () => {
      byId("tip").hidden = true;
    });
    byId("timelines").append(el("div", { class: "capture" }, el("h3", { text: capture.file + cut }), capture.canvas));
  }
}

function showTip(capture, event) {
  const tip = byId("tip");
  const box = capture.canvas.getBoundingClientRect();
  const lane = Math.floor((event.clientY - box.top - AXIS) / LANE);
  const x = event.clientX - box.left;
  const hit = x >= LABELS && lane >= 0 && lane < capture.lanes.length ? eventAt(capture, lane, x) : null;
  tip.hidden = !hit;
  if (!hit) return;
  const [, start, length, look, name] = hit;
  const word = WORDS[capture.looks[look]] ?? capture.looks[look];
  const place = `${time(start - iterationStart(capture))} after the start of the iteration`;
  tip.textContent = `${capture.names[name]} · ${word} · ${time(length)}, ${place}`;
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 430)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, innerHeight - 60)}px`;
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
  byId("legend").replaceChildren(
    ...looks.map((look) => {
      const canvas = el("canvas", { width: 14, height: 12, "aria-hidden": "true" });
      const context = context2d(canvas);
      context.fillStyle = patternFill(context, look);
      context.fillRect(0, 0, 14, 12);
      return el("li", {}, canvas, WORDS[look]);
    }),
  );
}

function redraw() {
  refreshColours();
  showLegend();
  draw();
}

showTexts();
showCaptures();
watchInput();
watchTheme(redraw);
refreshColours();
if (captures.length) fit();
redraw();
document.documentElement.dataset.ready = "";
