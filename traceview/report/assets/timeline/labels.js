// The labels of the rows: they fold groups and move rows.
import { actionButton, byId, el } from "../core/dom.js";
import { counterRange, counterText } from "./counters.js";
import { marksIn } from "./levels.js";
import { hideRow, isHead, pinRow } from "./rows.js";
import { board, view } from "./state.js";

export function showLabels(changed) {
  const labels = byId("labels");
  const focused = document.activeElement?.getAttribute("data-fold");
  const made = board.shown.map((item) => rowLabel(item, changed));
  const style = { height: board.pinned + "px" };
  const pinned = el("div", { class: "pinned", style }, ...made.filter((_, at) => board.shown[at].y < board.pinned));
  labels.replaceChildren(pinned, ...made.filter((label) => !pinned.contains(label)));
  byId("rows").style.height = board.height + "px";
  if (!focused) return;
  const button = labels.querySelector(`[data-fold="${CSS.escape(focused)}"]`);
  if (button instanceof HTMLElement) button.focus();
}

function rowLabel(item, changed) {
  const style = { top: item.y + "px", height: item.h + "px" };
  const made = el("div", { class: "label row-" + item.kind, style });
  if (item.kind === "group") fillGroupLabel(made, item.group, changed);
  else if (item.kind === "more") fillMoreLabel(made, item, changed);
  else fillRowLabel(made, item, changed);
  return made;
}

function fillGroupLabel(made, group, changed) {
  const title = "Fold or unfold; Alt with up or down moves the group";
  const options = { class: "fold", "aria-expanded": String(!group.folded), "data-fold": "g" + group.number, title };
  const button = actionButton((group.folded ? "▸ " : "▾ ") + group.label, options, () => {
    group.folded = !group.folded;
    changed();
  });
  made.title = group.note;
  made.append(button);
  makeMovable(made, button, board.groups, () => group, changed);
}

function fillMoreLabel(made, { group, more }, changed) {
  const quiet = more.filter((row) => !row.more).length,
    hidden = more.length - quiet,
    unused = more.every((row) => row.more === !row.lanes.length);
  const words = [
    hidden && (unused ? `${hidden} unused stream${hidden > 1 ? "s" : ""}` : `${hidden} hidden`),
    quiet && `${quiet} empty here`,
  ];
  const text = group.all ? "fold" : "+ " + words.filter(Boolean).join(", ");
  const flip = () => {
    group.all = !group.all;
    changed();
  };
  const title = "Rows that are hidden, or without events in view";
  made.append(actionButton(text, { title, "data-fold": "m" + group.number, "aria-expanded": String(group.all) }, flip));
}

function fillRowLabel(made, row, changed) {
  made.classList.toggle("lit", Boolean(view.lit?.rows.includes(row.id)));
  made.title = [row.label, row.note].filter(Boolean).join(", ");
  const note = row.counter ? highestText(row) : ""; // others are in the title
  const heads = isHead(row) && row.group.rows.some((one) => one.owner === row.owner && one !== row);
  const name = heads
    ? ownerButton(row, changed)
    : el("button", { class: "name", type: "button", "data-fold": row.id, text: row.label, tabindex: -1 });
  made.append(...(row.label ? [name] : []), ...(note ? [el("span.soft", note)] : []));
  const tool = (text, word, change) =>
    actionButton(text, { tabindex: -1, title: word, "aria-label": `${word}: ${row.label || row.note}` }, () => {
      change(row);
      changed();
    });
  made.append(
    el(
      "span.tools",
      tool(row.pinned ? "⤓" : "⤒", row.pinned ? "Unpin this row (p)" : "Pin this row to the top (p)", pinRow),
      tool(row.more ? "+" : "×", row.more ? "Show this row (h)" : "Hide this row (h)", hideRow),
    ),
  );
  if (row.label) makeMovable(made, name, row.group.rows, () => row, changed);
}

function highestText(row) {
  const marks = marksIn(row.lanes[0].exact);
  if (!marks) return "";
  row.range ??= counterRange(row, marks);
  return `max ${counterText(row, row.range.most)}, axis ${counterText(row, row.range.high)}`;
}

function ownerButton(row, changed) {
  const shut = row.group.shut.has(row.owner);
  const options = { class: "name", "data-fold": row.id, "aria-expanded": String(!shut) };
  return actionButton((shut ? "▸ " : "▾ ") + row.label, options, () => {
    if (!row.group.shut.delete(row.owner)) row.group.shut.add(row.owner);
    changed();
  });
}

// Dragging a label, or Alt with an arrow key, moves its row among the rows of its group; the rows of an owner move together.
function makeMovable(made, button, list, get, changed) {
  made.draggable = true;
  made.addEventListener("dragstart", (event) => {
    board.dragged = get();
    event.dataTransfer.setData("text/plain", "row");
  });
  made.addEventListener("dragover", (event) => {
    if (list.includes(board.dragged)) event.preventDefault();
  });
  made.addEventListener("drop", (event) => {
    event.preventDefault();
    moveTo(list, board.dragged, get());
    changed();
  });
  button.addEventListener("keydown", (event) => {
    if (!event.altKey || !["ArrowUp", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    const heads = list.filter((one) => !one.owner || list.find((other) => other.owner === one.owner) === one);
    const next = heads[heads.indexOf(get()) + (event.key === "ArrowUp" ? -1 : 1)];
    if (next) moveTo(list, get(), next);
    changed();
  });
}

function moveTo(list, what, where) {
  if (!what || what === where || !list.includes(what)) return;
  const mine = what.owner ? list.filter((one) => one.owner === what.owner) : [what];
  const down = list.indexOf(what) < list.indexOf(where);
  const rest = list.filter((one) => !mine.includes(one));
  const theirs = where.owner ? rest.filter((one) => one.owner === where.owner) : [where];
  rest.splice(rest.indexOf(theirs[0]) + (down ? theirs.length : 0), 0, ...mine);
  list.splice(0, list.length, ...rest);
}
