// All charts of the page.
import { byId, el } from "../core/dom.js";
import { charts, drawChart } from "./chart.js";
import { copyChart } from "./copies.js";
import { chartFigures } from "./figures.js";
import { gapSection } from "./gaps.js";
import { placeChart } from "./places.js";
import { rangeTree } from "./ranges.js";
import { showIterationChart } from "./iterations.js";
import { stackSections } from "./stacks.js";
import { streamSection } from "./streams.js";

export async function loadCharts() {
  const figures = await chartFigures();
  charts.watcher = new IntersectionObserver(
    (entries) => {
      const visible = entries.filter(({ isIntersecting }) => isIntersecting).map(({ target }) => target);
      for (const chart of charts.all) if (visible.includes(chart.stage)) drawChart(chart);
    },
    { rootMargin: "300px" },
  );
  if (figures.iterations) showIterationChart(figures.iterations);
  const several = figures.devices.length > 1;
  byId("charts-inner").replaceChildren(
    ...stackSections(figures.stacks),
    ...figures.devices.flatMap((device) => {
      const on = several ? `, ${device.id}` : "";
      return [
        placeChart(device, on),
        ...rangeTree(device, on),
        el("div.grid", gapSection(device, on), copyChart(device, on), streamSection(device, on)),
      ].filter(Boolean);
    }),
  );
}
