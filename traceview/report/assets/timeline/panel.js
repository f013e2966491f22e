// The panel below the timeline shows what is selected or measured; it is there only then.
import { byId, el } from "../core/dom.js";

/** Functions that return what stands above the content. @type {(() => Node[])[]} */
export const panelHeads = [];

export function showPanel(...children) {
  byId("panel").replaceChildren(...panelHeads.flatMap((make) => make()), ...children.filter(Boolean));
  byId("panel").hidden = !children.length;
}

const KEYS = [
  ["W, ↑, +", "zoom in (the wheel zooms at the pointer, with Ctrl or after a click into the timeline)"],
  ["S, ↓, −", "zoom out"],
  ["A, ←", "move left"],
  ["D, →", "move right"],
  ["drag", "move"],
  ["drag on the ruler", "select an area of all rows: its kernels, copies, idle causes, ranges and lines"],
  ["Shift and drag", "select an area of the rows under the drag"],
  ["c", "keep the area as A and compare the next one with it; again to end"],
  ["double click on an event", "zoom to it; elsewhere, show the whole capture"],
  ["Home, 0", "show the whole capture"],
  ["Backspace", "the view before, as the browser's back button"],
  ["b, B", "bookmark the area, the selection or the view, with a note; next bookmark. The link holds them"],
  ["f", "show the area, the selection or the place, or the whole capture"],
  ["/", "search by name; Enter and Shift+Enter go to the next and previous match"],
  ["n, N", "next and previous of what is highlighted: matches, instances of a kernel, iterations, gaps, places"],
  [
    "m",
    "select an area: press once at each end; without a pointer over the timeline, the selection or the visible range",
  ],
  [". and ,", "next and previous operation in the row"],
  ["> and <", "the operation at the same time in the next and previous row"],
  ["M", "select the visible time of the selection's row as an area"],
  ["l", "go from GPU work to its launch, and back"],
  ["click", "show details of an operation"],
  ["Page Up, Page Down", "scroll the rows"],
  ["z", "let the timeline fill the window, and back; a drag on its lower edge changes its height"],
  ["p, h", "pin the row under the pointer or of the selection to the top, or hide it; again to undo"],
  ["Alt and ↑ or ↓ on a label, or drag it", "move a row"],
  ["Esc", "clear the selection, the area and the highlight"],
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
