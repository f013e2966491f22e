// Bookmarks: places with a note. The address keeps them; flags on the ruler show them.
import { actionButton, byId, context2d, el } from "../core/dom.js";
import { cssColour } from "../core/palette.js";
import { duration, momentText } from "../core/words.js";
import { toX } from "./axis.js";
import { showPanel } from "./panel.js";
import { area, selectedSpan, view } from "./state.js";
import { schedule, setSpan } from "./view.js";

const FLAG = 7; // pixels

/** @type {{ all: { from: number, to: number, note: string }[] }} */
export const bookmarks = { all: [] };

// Marks the area, the selected event or the view; the note is written in the panel.
export function addBookmark() {
  const [from, to] = area.result?.points ?? selectedSpan() ?? [view.from, view.to];
  const made = { from: Math.round(from), to: Math.round(to), note: "" };
  bookmarks.all = [...bookmarks.all, made].sort((a, b) => a.from - b.from);
  showBookmarks(made);
  schedule();
}

export function showBookmarks(current = bookmarks.all[0]) {
  if (!bookmarks.all.length) return showPanel();
  showPanel(
    el("h3", "Bookmarks: the link of this page holds them"),
    el("ul.bookmarks", ...bookmarks.all.map((mark) => bookmarkLine(mark, mark === current))),
  );
  const field = document.querySelector(".bookmarks .current input");
  if (field instanceof HTMLElement) field.focus();
}

function bookmarkLine(mark, current) {
  const place = `${duration(mark.to - mark.from)} from ${momentText(mark.from)}`;
  const remove = actionButton("Remove", {}, () => {
    bookmarks.all = bookmarks.all.filter((one) => one !== mark);
    showBookmarks();
    schedule();
  });
  const field = el("input", {
    maxlength: 200,
    value: mark.note,
    placeholder: "Note",
    "aria-label": `Note on ${place}`,
    oninput: () => {
      mark.note = field.value;
      schedule();
    },
    onkeydown: ({ key }) => ["Enter", "Escape"].includes(key) && byId("stage").focus(),
  });
  const show = actionButton(place, {}, () => goToBookmark(mark));
  return el("li", { class: current ? "current" : null }, show, field, remove);
}

function goToBookmark({ from, to }) {
  setSpan([from, to], 0.05, 50);
}

// The bookmark after the start of the view, or the first; shows all.
export function nextBookmark() {
  const middle = (view.from + view.to) / 2;
  const next = bookmarks.all.find(({ from, to }) => (from + to) / 2 > middle + 1) ?? bookmarks.all[0];
  if (!next) return;
  goToBookmark(next);
  showBookmarks(next);
}

export function bookmarkAt(x) {
  return bookmarks.all.find(({ from }) => Math.abs(toX(from) - x) <= FLAG) ?? null;
}

export function drawBookmarks() {
  const pen = context2d(byId("axis", HTMLCanvasElement));
  pen.fillStyle = cssColour("--mark");
  for (const { from } of bookmarks.all) {
    const x = toX(from);
    pen.fillRect(x, 0, 1.5, 28);
    pen.beginPath();
    pen.moveTo(x, 0);
    pen.lineTo(x + FLAG, FLAG / 2);
    pen.lineTo(x, FLAG);
    pen.fill();
  }
}
