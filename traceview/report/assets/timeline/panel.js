// The panel below the timeline: what is selected or measured, or a hint. Its height never changes.
import { byId, el } from "../core/dom.js";

export function showPanel(...children) {
  byId("panel").replaceChildren(...children.filter(Boolean));
}

export function showHint() {
  const key = (text) => el("kbd", { text });
  showPanel(
    el(
      "p",
      { class: "soft" },
      "Click an operation for its launch and its ranges. ",
      key("W"),
      key("A"),
      key("S"),
      key("D"),
      " or the wheel zoom and move, ",
      key("Shift"),
      " and drag zooms into a box, ",
      key("/"),
      " searches, ",
      key("m"),
      " measures, ",
      key("?"),
      " lists every key.",
    ),
  );
}

const KEYS = [
  ["W, ↑, +", "zoom in (the wheel does it at the pointer)"],
  ["S, ↓, −", "zoom out"],
  ["A, ←", "move left"],
  ["D, →", "move right"],
  ["drag", "move"],
  ["Shift and drag, or drag on the axis", "zoom into what the box holds"],
  ["double click, Home, 0", "show the whole capture"],
  ["f", "show what is selected, or the whole capture"],
  ["/", "search a name; Enter and Shift+Enter step"],
  ["n, N", "next and previous of what was found"],
  ["m", "measure: one press at each end; without a pointer over the timeline, what is selected or shows"],
  [". and ,", "next and previous operation of the row"],
  ["l", "from GPU work to its launch, and back"],
  ["click", "details of an operation"],
  ["[ and ]", "previous and next of the worst places"],
  ["Page Up, Page Down", "scroll the rows"],
  ["Alt and ↑ or ↓ on a label, or drag it", "move a row"],
  ["Esc", "clear the selection, the measure and the highlight"],
  ["?", "this list"],
];

export function showHelp() {
  byId("keys").replaceChildren(
    ...KEYS.map(([keys, what]) =>
      el("tr", {}, el("th", { scope: "row", text: keys }), el("td", { class: "text", text: what })),
    ),
  );
  byId("help", HTMLDialogElement).showModal();
}
