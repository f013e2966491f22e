// The panel below the timeline shows what is selected or measured; it is there only then.
import { byId } from "../core/dom.js";

/** Functions that return what stands above the content. @type {(() => Node[])[]} */
export const panelHeads = [];

export function showPanel(...children) {
  byId("panel").replaceChildren(...panelHeads.flatMap((make) => make()), ...children.filter(Boolean));
  byId("panel").hidden = !children.length;
}

// The list begins at its top.
export function showHelp() {
  const help = byId("help", HTMLDialogElement);
  help.showModal();
  help.focus();
  help.scrollTop = 0;
}
