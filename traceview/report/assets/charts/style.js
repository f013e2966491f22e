// The common look of all charts.
import { cssColour } from "../core/palette.js";

// Plotly interprets some tags in its texts; names must not become tags.
export function plotlyText(name) {
  return name.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
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
