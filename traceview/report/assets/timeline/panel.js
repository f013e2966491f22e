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
      "Click an operation to see its launch and NVTX ranges. ",
      key("W"),
      key("A"),
      key("S"),
      key("D"),
      " or ",
      key("Ctrl"),
      " + wheel: zoom and move; ",
      key("Shift"),
      " + drag: zoom to a box; ",
      key("/"),
      ": search; ",
      key("m"),
      ": measure; ",
      key("?"),
      ": all shortcuts.",
    ),
  );
}

const KEYS = [
  ["W, ↑, +", "zoom in (the wheel zooms at the pointer, with Ctrl or after a click into the timeline)"],
  ["S, ↓, −", "zoom out"],
  ["A, ←", "move left"],
  ["D, →", "move right"],
  ["drag", "move"],
  ["Shift and drag, or drag on the axis", "zoom to the box"],
  ["double click, Home, 0", "show the whole capture"],
  ["f", "show the selection, or the whole capture"],
  ["/", "search by name; Enter and Shift+Enter go to the next and previous match"],
  ["n, N", "next and previous match"],
  [
    "m",
    "measure: press once at each end; without a pointer over the timeline, measure the selection or the visible range",
  ],
  [". and ,", "next and previous operation in the row"],
  ["l", "go from GPU work to its launch, and back"],
  ["click", "show details of an operation"],
  ["[ and ]", "previous and next worst place"],
  ["Page Up, Page Down", "scroll the rows"],
  ["Alt and ↑ or ↓ on a label, or drag it", "move a row"],
  ["Esc", "clear the selection, the measurement and the highlight"],
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
