// Kernel time by module, op and kernel: a flame chart, in which a click on a part shows it alone.
import { fieldName } from "../core/export.js";
import { countText, duration, percent } from "../core/words.js";
import { chartSection } from "./chart.js";
import { icicleParts, rootTime } from "./icicle.js";

export function placeChart(device, on) {
  const nodes = device.places.map(([label, parent, count, ns]) => ({ label, parent, count, ns, colour: "--compute" }));
  if (!nodes.length) return null;
  for (const node of nodes) {
    const outer = nodes[node.parent];
    node.depth = outer ? outer.depth + 1 : 0;
    node.path = outer ? `${outer.path} / ${node.label}` : node.label;
  }
  const total = rootTime(nodes);
  const tip = ({ ns }) => `${duration(ns)}, ${percent(ns, total)}`;
  return chartSection({
    id: fieldName("chart places " + device.id),
    note: "Backward kernels count for the module and the op of their forward; where no module is known, ranges stand in its place. Click a part to show it alone, and its top to go back. Small parts are left out.",
    ...icicleParts("Kernel time by module and op" + on, nodes, {
      tree: "module, op, kernel",
      counted: "kernels",
      said: (node) => `${tip(node)} of the kernel time, ${countText(node.count)} kernels`,
      tip,
    }),
  });
}
