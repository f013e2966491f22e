// NVTX ranges as a tree with the kernel time of each, with and without that of the ranges inside it.
import { treeTable } from "../core/areatable.js";
import { fieldName } from "../core/export.js";
import { headedSection } from "../core/dom.js";
import { countText, duration, percent } from "../core/words.js";

// Returns a list of one section, or an empty list without ranges. `device.ranges` are [name, parent, count, ns, own ns].
export function rangeTree({ id, ranges }, on) {
  if (!ranges.length) return [];
  const heading = "Kernel time by NVTX range" + on;
  const nodes = ranges.map(([name, , count, time, own]) => ({ name, count, time, own, inner: [] }));
  const outer = nodes.filter((node, at) => {
    const around = nodes[ranges[at][1]];
    around?.inner.push(node);
    return !around;
  });
  for (const node of outer) node.open = true;
  const all = outer.reduce((sum, { time }) => sum + time, 0);
  const figure = (heading, value, text) => ({ heading, value, text: (node) => text(value(node)) });
  const share = (ns) => percent(ns, all);
  const [total, own] = [(node) => node.time, (node) => node.own];
  const figures = [
    figure("total", total, duration),
    figure("share", total, share),
    figure("own", own, duration),
    figure("share", own, share),
    figure("kernels", (node) => node.count, countText),
  ];
  const options = { class: "range-tree", id: fieldName("ranges " + id) },
    note =
      "A range has the kernels that are launched while it is open. Its own time is that outside any inner range. Counters in names are #.";
  return [headedSection(options, heading, note, treeTable("range", figures, outer, heading))];
}
