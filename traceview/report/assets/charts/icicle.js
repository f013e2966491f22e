// Icicle (flame) charts: a tree with its root at the top. A click on a part shows it alone, a click on the top goes back.
import { cssColour, inkFor } from "../core/palette.js";
import { chartLayout, plotlyText } from "./style.js";

const LEVEL_HEIGHT = 24;
const MOST_LEVELS = 20; // at once; a click on a part shows those below
const VISIBLE = 0.004; // of the width

// The levels that the chart of `nodes` shows at first: those with more than slivers.
export function icicleLevels(nodes) {
  const total = nodes.reduce((sum, { parent, ns }) => sum + (parent < 0 ? ns : 0), 0);
  const visible = nodes.filter(({ ns }) => ns >= VISIBLE * total).map(({ depth }) => depth);
  return Math.min(MOST_LEVELS, Math.max(...visible) + 1);
}

export function icicleHeight(levels) {
  return levels * LEVEL_HEIGHT + 4;
}

// Nodes are { label, text, value, parent, colour }; the value includes those of the children, `parent` is an index.
export function iciclePicture(nodes, levels) {
  const ink = nodes.map(({ colour }) => inkFor(colour));
  const trace = {
    type: "icicle",
    ids: nodes.map((_, at) => String(at)),
    labels: nodes.map(({ label }) => plotlyText(label)),
    parents: nodes.map(({ parent }) => (parent < 0 ? "" : String(parent))),
    values: nodes.map(({ value }) => value),
    branchvalues: "total",
    maxdepth: levels,
    customdata: nodes.map((_, at) => at),
    text: nodes.map(({ text }) => plotlyText(text).replaceAll("\n", "<br>")),
    textinfo: "label",
    textposition: "middle left",
    hovertemplate: "%{label}<br>%{text}<extra></extra>",
    leaf: { opacity: 1 },
    insidetextfont: { color: ink },
    outsidetextfont: { color: ink },
    tiling: { orientation: "v" },
    pathbar: { visible: false },
    sort: true,
    marker: { colors: nodes.map(({ colour }) => colour), line: { width: 1, color: cssColour("--card") } },
  };
  const margin = { l: 4, r: 4, t: 2, b: 2 };
  return { traces: [trace], layout: chartLayout({}, {}, { margin, uniformtext: { minsize: 9, mode: "hide" } }) };
}
