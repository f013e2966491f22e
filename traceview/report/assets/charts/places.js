// Kernel time by module, op and kernel: a flame chart, in which a click on a part shows it alone.
import { fieldName } from "../core/export.js";
import { cssColour } from "../core/palette.js";
import { countColumn, durationColumn, shareColumn, table, textColumn } from "../core/table.js";
import { countText, milliseconds, percent } from "../core/words.js";
import { chartLayout, plotlyText } from "./style.js";

const LEVEL_HEIGHT = 26;

export function placeChart(device, on) {
  const nodes = device.places.map(([name, parent, count, ns]) => ({ name, parent, count, ns }));
  if (!nodes.length) return null;
  for (const node of nodes) {
    const outer = nodes[node.parent];
    node.depth = outer ? outer.depth + 1 : 0;
    node.path = outer ? `${outer.path} / ${node.name}` : node.name;
  }
  const total = nodes.reduce((sum, { parent, ns }) => sum + (parent < 0 ? ns : 0), 0);
  const levels = Math.max(...nodes.map(({ depth }) => depth)) + 1;
  return {
    id: fieldName("chart places " + device.id),
    heading: "Kernel time by module and op" + on,
    note: "Backward kernels count for the module and the op of their forward; where no module is known, ranges stand in its place. Click a part to show it alone, and the line above it to go back. Small parts are left out.",
    items: nodes.map((node) => ({ text: nodeText(node, total), place: null })),
    bare: true,
    height: (levels + 1) * LEVEL_HEIGHT + 40,
    picture: () => placePicture(nodes, total),
    table: () => placeTable(nodes, total, on),
  };
}

function nodeText({ path, ns, count }, total) {
  return `${path}: ${milliseconds(ns)}, ${percent(ns, total)} of the kernel time, ${countText(count)} kernels`;
}

function placePicture(nodes, total) {
  const trace = {
    type: "icicle",
    ids: nodes.map((_, at) => String(at)),
    labels: nodes.map(({ name }) => plotlyText(name)),
    parents: nodes.map(({ parent }) => (parent < 0 ? "" : String(parent))),
    values: nodes.map(({ ns }) => ns),
    branchvalues: "total",
    customdata: nodes.map((_, at) => at),
    text: nodes.map(({ ns }) => `${milliseconds(ns)}, ${percent(ns, total)}`),
    textinfo: "label",
    hovertemplate: "%{label}<br>%{text}<extra></extra>",
    tiling: { orientation: "v" },
    pathbar: { thickness: LEVEL_HEIGHT },
    sort: true,
    marker: { colors: nodes.map(() => cssColour("--compute")), line: { width: 1, color: cssColour("--card") } },
  };
  const margin = { l: 4, r: 4, t: LEVEL_HEIGHT + 6, b: 4 };
  return { traces: [trace], layout: chartLayout({}, {}, { margin, uniformtext: { minsize: 9, mode: "hide" } }) };
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
