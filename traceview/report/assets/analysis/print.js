// Paper is white and narrower than a screen: charts are redrawn for it before printing, and for the screen afterwards.
import { charts, paintChart } from "../charts/chart.js";
import { byId, context2d, queryAll } from "../core/dom.js";
import { page } from "../core/page.js";
import { readPalette, useTheme } from "../core/palette.js";
import { rebuild, redraw } from "../timeline/view.js";

const PAPER = 690; // pixels: the width of A4 or Letter paper in portrait, inside the margins of print.css

const printing = { dark: false };

export function watchPrinting() {
  addEventListener("beforeprint", () => {
    queryAll("main > section > details").forEach((part) => part.setAttribute("open", ""));
    printing.dark = document.documentElement.dataset.theme === "dark";
    useTheme(false);
    readPalette(page.looks, context2d(byId("canvas", HTMLCanvasElement)));
    // The timeline keeps its pixels and is scaled, so that paper shows the same part as the screen.
    const timeline = byId("timeline");
    timeline.style.setProperty("--paper", String(Math.min(1, PAPER / timeline.offsetWidth)));
    timeline.style.setProperty("--labels", byId("labels").offsetWidth + "px");
    redraw();
    for (const chart of charts.all)
      if (chart.drawn) paintChart(chart, PAPER);
      else chart.stage.replaceChildren(chart.spec.table()); // nothing waits for plotly.js here
  });
  addEventListener("afterprint", async () => {
    useTheme(printing.dark);
    byId("timeline").style.removeProperty("--labels");
    rebuild();
    for (const chart of charts.all)
      if (chart.drawn) await paintChart(chart);
      else chart.stage.replaceChildren();
  });
}
