// The common look of all charts.
import { cssColour, patternName } from "../core/palette.js";

const SHAPES = {
  striped: "\\",
  slashed: "/",
  hatched: "/",
  dotted: ".",
  upright: "|",
  level: "-",
  crossed: "x",
  checked: "+",
};

// Plotly interprets some tags in its texts; names must not become tags.
export function plotlyText(name) {
  return name.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

// Bars that touch each other have no edges.
export function barStyle(look, edge = 0.5) {
  const shape = SHAPES[patternName(look)] ?? "";
  const fgcolor = patternName(look) === "hatched" ? "rgba(255,255,255,0.5)" : "rgba(0,0,0,0.4)";
  return {
    color: cssColour("--" + look),
    line: { width: edge, color: cssColour("--edge") },
    pattern: { shape, size: 6, solidity: 0.22, fillmode: "overlay", fgcolor },
  };
}

export function chartLayout(xaxis, yaxis, more = {}) {
  const axis = {
    gridcolor: cssColour("--grid"),
    linecolor: cssColour("--line"),
    zerolinecolor: cssColour("--line"),
    fixedrange: true,
    tickangle: 0,
    automargin: true,
  };
  return {
    margin: { l: 52, r: 10, t: 8, b: 40 },
    showlegend: false,
    barmode: "stack",
    bargap: 0.2,
    hovermode: "closest",
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: cssColour("--soft") },
    hoverlabel: {
      bgcolor: cssColour("--card"),
      bordercolor: cssColour("--line"),
      align: "left",
      font: { color: cssColour("--ink"), size: 12 },
    },
    xaxis: { ...axis, ...xaxis },
    yaxis: { ...axis, ...yaxis },
    ...more,
  };
}
