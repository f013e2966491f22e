// Icicle (flame) charts: a tree of bars with its root at the top. A click on a part shows it alone, a click on the top goes back.
import { cssColour, inkFor } from "../core/palette.js";
import { countColumn, durationColumn, shareColumn, table, textColumn } from "../core/table.js";
import { middle } from "../core/words.js";
import { chartLayout, plotlyText } from "./style.js";

const LEVEL_HEIGHT = 24;
const MOST_LEVELS = 20; // at once; a click on a part shows those below
const VISIBLE = 0.004; // of the width
const SLIVER = 0.0007;
const LETTER = 7.5; // pixels
const MAX_LETTERS = 40; // MAX_TITLE_NAME of traceview/model/names.py

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
  const top = { at: -1 }; // the part that is shown alone
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
    picture: (width) => iciclePicture(nodes, tip, levels, width, top.at),
    open: (at) => Object.assign(top, { at: at === top.at ? nodes[at].parent : at }),
    table: () => table(heading, columns, nodes, most),
  };
}

// The levels that the chart shows at first: those with more than slivers.
function icicleLevels(nodes, total) {
  const visible = nodes.filter(({ ns }) => ns >= VISIBLE * total).map(({ depth }) => depth);
  return Math.min(MOST_LEVELS, Math.max(...visible) + 1);
}

// The visible parts with their left edges, in ns: below their callers, the longest first.
function visibleParts(nodes, levels, top) {
  const inside = Map.groupBy(nodes.keys(), (at) => nodes[at].parent);
  const whole = top < 0 ? rootTime(nodes) : nodes[top].ns;
  const parts = [];
  const add = (ats, left, level) => {
    for (const at of [...ats].sort((a, b) => nodes[b].ns - nodes[a].ns)) {
      if (nodes[at].ns < SLIVER * whole) return;
      parts.push({ at, left, level });
      if (level + 1 < levels) add(inside.get(at) ?? [], left, level + 1);
      left += nodes[at].ns;
    }
  };
  add(top < 0 ? (inside.get(-1) ?? []) : [top], 0, 0);
  return { parts, whole };
}

function iciclePicture(nodes, tip, levels, width, top) {
  const { parts, whole } = visibleParts(nodes, levels, top);
  const fitting = ({ label, ns }) => {
    const letters = Math.min(Math.floor((ns / whole) * (width / LETTER)) - 1, MAX_LETTERS);
    return letters < 3 ? "" : plotlyText(middle(label, letters));
  };
  const shown = parts.map(({ at }) => nodes[at]);
  const colours = shown.map(({ colour }) => cssColour(colour));
  const trace = {
    type: "bar",
    orientation: "h",
    base: parts.map(({ left }) => left),
    x: shown.map(({ ns }) => ns),
    y: parts.map(({ level }) => level),
    width: 1,
    customdata: parts.map(({ at }) => at),
    text: shown.map(fitting),
    textposition: "inside",
    insidetextanchor: "start",
    constraintext: "none",
    textangle: 0,
    insidetextfont: { color: colours.map(inkFor) },
    hovertext: shown.map((node) => plotlyText(`${node.label}\n${tip(node)}`).replaceAll("\n", "<br>")),
    hoverinfo: "text",
    marker: { color: colours, line: { width: 1, color: cssColour("--card") } },
  };
  const hidden = { visible: false, fixedrange: true };
  const yaxis = { ...hidden, range: [levels - 0.5, -0.5] };
  const margin = { l: 4, r: 4, t: 2, b: 2 };
  return { traces: [trace], layout: chartLayout({ ...hidden, range: [0, whole] }, yaxis, { margin, bargap: 0 }) };
}
