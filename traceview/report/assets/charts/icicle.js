// Icicle (flame) charts: a tree with its root at the top. A click on a part shows it alone, a click on the top goes back.
import { cssColour, inkFor } from "../core/palette.js";
import { countColumn, durationColumn, shareColumn, table, textColumn } from "../core/table.js";
import { chartLayout, plotlyText } from "./style.js";

const LEVEL_HEIGHT = 24;
const MOST_LEVELS = 20; // at once; a click on a part shows those below
const VISIBLE = 0.004; // of the width

// The time of all roots.
export function rootTime(nodes) {
  return nodes.reduce((sum, { parent, ns }) => sum + (parent < 0 ? ns : 0), 0);
}

/**
 * What a chart of nodes { path, label, depth, parent, ns, count, colour } shows, as a part of its spec. The time of a node
 * includes that of its children; `parent` is an index, `colour` a custom property.
 * @param {string} heading
 * @param {any[]} nodes
 * @param {{ tree: string, counted: string, said: (node: any) => string, tip: (node: any) => string, most?: number }} words
 *   headings of the table; what the chart says of a node that the reader selects, or points at
 */
export function icicleParts(heading, nodes, { tree, counted, said, tip, most }) {
  const total = rootTime(nodes);
  const levels = icicleLevels(nodes, total);
  const columns = [
    textColumn(tree, ({ path }) => path),
    durationColumn("total", ({ ns }) => ns),
    shareColumn("share", ({ ns }) => [ns, total]),
    countColumn(counted, ({ count }) => count),
  ];
  return {
    heading,
    items: nodes.map((node) => ({ text: `${node.path}: ${said(node)}`, place: null })),
    bare: true,
    height: levels * LEVEL_HEIGHT + 4,
    picture: () => iciclePicture(nodes, tip, levels),
    table: () => table(heading, columns, nodes, most),
  };
}

// The levels that the chart shows at first: those with more than slivers.
function icicleLevels(nodes, total) {
  const visible = nodes.filter(({ ns }) => ns >= VISIBLE * total).map(({ depth }) => depth);
  return Math.min(MOST_LEVELS, Math.max(...visible) + 1);
}

function iciclePicture(nodes, tip, levels) {
  const colours = nodes.map(({ colour }) => cssColour(colour));
  const ink = colours.map(inkFor);
  const trace = {
    type: "icicle",
    ids: nodes.map((_, at) => String(at)),
    labels: nodes.map(({ label }) => plotlyText(label)),
    parents: nodes.map(({ parent }) => (parent < 0 ? "" : String(parent))),
    values: nodes.map(({ ns }) => ns),
    branchvalues: "total",
    maxdepth: levels,
    customdata: nodes.map((_, at) => at),
    text: nodes.map((node) => plotlyText(tip(node)).replaceAll("\n", "<br>")),
    textinfo: "label",
    textposition: "middle left",
    hovertemplate: "%{label}<br>%{text}<extra></extra>",
    leaf: { opacity: 1 },
    insidetextfont: { color: ink },
    outsidetextfont: { color: ink },
    tiling: { orientation: "v" },
    pathbar: { visible: false },
    sort: true,
    marker: { colors: colours, line: { width: 1, color: cssColour("--card") } },
  };
  const margin = { l: 4, r: 4, t: 2, b: 2 };
  return { traces: [trace], layout: chartLayout({}, {}, { margin, uniformtext: { minsize: 9, mode: "hide" } }) };
}
