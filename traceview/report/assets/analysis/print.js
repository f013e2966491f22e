// Paper is white and narrower than a screen: charts are redrawn for it before printing, and for the screen afterwards.
import { charts, paintChart } from "../charts/chart.js";
import { byId, queryAll } from "../core/dom.js";
import { useTheme } from "../core/palette.js";
import { timelinePicture } from "../timeline/picture.js";
import { AXIS, board } from "../timeline/state.js";
import { rebuild } from "../timeline/view.js";

const PAPER = 690; // pixels: the width of A4 or Letter paper in portrait, inside the margins of print.css
const PICTURE = [1000, 1300]; // most pixels of the timeline's picture, which paper scales to its width: text of 6 points

/** @type {{ dark: boolean, picture: HTMLCanvasElement | null }} */
const printing = { dark: false, picture: null };

// The time in view with all rows, as far as a page has room: paper does not scroll.
function timelineOnPaper() {
  const [wide, most] = PICTURE,
    timeline = byId("timeline").style,
    frame = byId("frame"),
    { height } = frame.style;
  timeline.width = `${wide}px`;
  frame.style.height = `${Math.min(board.height + AXIS, most)}px`;
  rebuild();
  const picture = timelinePicture();
  picture.className = "paper";
  frame.after(picture);
  timeline.width = "";
  frame.style.height = height;
  frame.hidden = true;
  return picture;
}

export function watchPrinting() {
  addEventListener("beforeprint", () => {
    queryAll("main > section > details").forEach((part) => part.setAttribute("open", ""));
    printing.dark = document.documentElement.dataset.theme === "dark";
    useTheme(false);
    printing.picture = timelineOnPaper();
    for (const chart of charts.all)
      if (chart.drawn) paintChart(chart, PAPER);
      else chart.stage.replaceChildren(chart.spec.table()); // nothing waits for plotly.js here
  });
  addEventListener("afterprint", async () => {
    useTheme(printing.dark);
    printing.picture?.remove();
    byId("frame").hidden = false;
    rebuild();
    for (const chart of charts.all)
      if (chart.drawn) await paintChart(chart);
      else chart.stage.replaceChildren();
  });
}
