// Kernel time by module, op and kernel: a flame chart, in which a click on a part shows it alone.
import { fieldName } from "../core/export.js";
import { cssColour } from "../core/palette.js";
import { countColumn, durationColumn, shareColumn, table, textColumn } from "../core/table.js";
import { countText, duration, percent } from "../core/words.js";
import { icicleHeight, icicleLevels, iciclePicture } from "./icicle.js";

export function placeChart(device, on) {
  const nodes = device.places.map(([name, parent, count, ns]) => ({ name, parent, count, ns }));
  if (!nodes.length) return null;
  for (const node of nodes) {
    const outer = nodes[node.parent];
    node.depth = outer ? outer.depth + 1 : 0;
    node.path = outer ? `${outer.path} / ${node.name}` : node.name;
  }
  const total = nodes.reduce((sum, { parent, ns }) => sum + (parent < 0 ? ns : 0), 0);
  const levels = icicleLevels(nodes);
  return {
    id: fieldName("chart places " + device.id),
    heading: "Kernel time by module and op" + on,
    note: "Backward kernels count for the module and the op of their forward; where no module is known, ranges stand in its place. Click a part to show it alone, and its top to go back. Small parts are left out.",
    items: nodes.map((node) => ({ text: nodeText(node, total), place: null })),
    bare: true,
    height: icicleHeight(levels),
    picture: () => placePicture(nodes, total, levels),
    table: () => placeTable(nodes, total, on),
  };
}

function nodeText({ path, ns, count }, total) {
  return `${path}: ${duration(ns)}, ${percent(ns, total)} of the kernel time, ${countText(count)} kernels`;
}

function placePicture(nodes, total, levels) {
  return iciclePicture(
    nodes.map(({ name, parent, ns }) => ({
      parent,
      value: ns,
      label: name,
      text: `${duration(ns)}, ${percent(ns, total)}`,
      colour: cssColour("--compute"),
    })),
    levels,
  );
}

function placeTable(nodes, total, on) {
  return table(
    "Kernel time by module and op" + on,
    [
      textColumn("module, op, kernel", ({ path }) => path),
      durationColumn("total", ({ ns }) => ns),
      shareColumn(
        "share",
        ({ ns }) => ns,
        () => total,
      ),
      countColumn("kernels", ({ count }) => count),
    ],
    nodes,
  );
}
