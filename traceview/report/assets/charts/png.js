// Saves a chart as a PNG file.
import { fileName, save } from "../core/export.js";
import { page } from "../core/page.js";
import { cssColour } from "../core/palette.js";
import { plotlyText } from "./style.js";

const PNG = { width: 1000, height: 480, scale: 2 };

// The picture has its own heading, legend and background.
export async function savePng(chart) {
  const { traces, layout } = chart.spec.picture(PNG.width);
  const head = `${plotlyText(chart.spec.heading)}<br><span style="font-size:12px">${plotlyText(page.file)}</span>`;
  const height = Math.max(PNG.height, (layout.height ?? 0) + 120);
  const whole = {
    ...layout,
    ...PNG,
    height,
    autosize: false,
    showlegend: !chart.spec.bare,
    legend: { itemsizing: "constant" },
    margin: { ...layout.margin, t: chart.spec.bare ? 120 : 76 },
    title: {
      text: head,
      x: 0.02,
      xanchor: "left",
      y: 1 - 26 / height,
      yanchor: "top",
      font: { size: 16, color: cssColour("--ink") },
    },
    paper_bgcolor: cssColour("--card"),
    plot_bgcolor: cssColour("--card"),
  };
  const url = await Plotly.toImage({ data: traces, layout: whole }, { format: "png", ...PNG, height });
  save(fileName(chart.spec.heading, "png"), blobOf(url));
}

// fetch() is not possible: the content security policy allows no connection, not even to a data: address.
function blobOf(url) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (char) => char.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}
