// NVTX ranges as a tree with the kernel time of each, with and without that of the ranges inside it.
import { figureTable } from "../core/areatable.js";
import { fieldName } from "../core/export.js";
import { actionButton, el } from "../core/dom.js";
import { countText, duration, percent } from "../core/words.js";

const OPEN_LEVELS = 2;

// Returns a list of one section, or an empty list without ranges. `device.ranges` are [name, parent, count, ns, own ns].
export function rangeTree({ id, ranges }, on) {
  if (!ranges.length) return [];
  const nodes = ranges.map(([name, parent, count, total, own]) => ({ name, parent, count, total, own, inner: [] }));
  const outer = nodes.filter((node) => {
    const around = nodes[node.parent];
    if (!around) return true;
    around.inner.push(node);
    return false;
  });
  const all = outer.reduce((sum, { total }) => sum + total, 0);
  const lines = [];
  for (const node of outer) addLines(lines, node, 0, all);
  return [
    el(
      "section",
      { class: "range-tree", id: fieldName("ranges " + id) },
      el("h2", { text: "Kernel time by NVTX range" + on }),
      el("p", {
        class: "soft",
        text: "A range has the kernels that are launched while it is open. Its own time is that outside any inner range. Counters in names are #.",
      }),
      el("div", { class: "table" }, figureTable(["range", "total", "share", "own", "share", "kernels"], lines)),
    ),
  ];
}

// Adds a node and those inside it; returns a function that shows or hides them all.
function addLines(lines, node, depth, all) {
  const { name, total, own, count, inner } = node;
  const state = { open: depth < OPEN_LEVELS - 1 };
  const button = inner.length
    ? actionButton("", { class: "small", "aria-expanded": String(state.open) }, () => flip())
    : null;
  const line = el(
    "tr",
    {},
    el("th", { scope: "row", "--depth": depth }, button, ` ${name}`),
    ...[duration(total), percent(total, all), duration(own), percent(own, all), countText(count)].map((text) =>
      el("td", { text }),
    ),
  );
  lines.push(line);
  const shows = inner.map((one) => addLines(lines, one, depth + 1, all));
  const show = (visible) => {
    line.hidden = !visible;
    for (const each of shows) each(visible && state.open);
  };
  const flip = (open = !state.open) => {
    state.open = open;
    button?.setAttribute("aria-expanded", String(open));
    if (button) button.textContent = open ? "▾" : "▸";
    for (const each of shows) each(open);
  };
  flip(state.open);
  return show;
}
