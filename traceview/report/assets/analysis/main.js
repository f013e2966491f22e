// Entry of the page: the answer and the coarse timeline first, then finer levels and the charts as they are unpacked.
import { repaintCharts } from "../charts/chart.js";
import { loadCharts } from "../charts/charts.js";
import { showIterations } from "../charts/iterations.js";
import { chunks, eventCount, inflateElement, inflateText } from "../core/columns.js";
import { byId, drawnFrame, nextTask, queryAll } from "../core/dom.js";
import { page } from "../core/page.js";
import { watchTheme } from "../core/palette.js";
import { countText } from "../core/words.js";
import { watchAddress } from "../timeline/address.js";
import { drawn } from "../timeline/draw.js";
import { watchHover } from "../timeline/hover.js";
import { watchKeys } from "../timeline/keys.js";
import { startLegend } from "../timeline/legend.js";
import { marksIn } from "../timeline/levels.js";
import { watchOverview } from "../timeline/overview.js";
import { watchEvents } from "../timeline/events.js";
import { watchPointer } from "../timeline/pointer.js";
import { loadRows } from "../timeline/rows.js";
import { watchSearch } from "../timeline/search.js";
import { area, board, linked, selected, view } from "../timeline/state.js";
import { layOut, rebuild, schedule, setView, startView } from "../timeline/view.js";
import { showAnswer, showHead } from "./answer.js";
import { followCover } from "./cover.js";
import { showFindings } from "./findings.js";
import { showKernels } from "./kernels.js";
import { watchPrinting } from "./print.js";
import { showStrip } from "./strip.js";
import { showNotes, showTables } from "./tables.js";
import { showWhatIf } from "./whatif.js";

function showSummarised() {
  const { whole, events } = page.timeline,
    notice = byId("summarised");
  notice.hidden = whole;
  if (!whole)
    notice.textContent = `Summarised: most of the ${countText(events)} events are merged into bins. Every event is shown around the findings, the longest gaps and stalls, and the median, best and worst iteration. A dashed box shows how many events it stands for. A larger page (--detail) shows more; to see every event, run traceview export and open the trace in ui.perfetto.dev.`;
}

// A link to a part of the page opens it.
function openPart(hash) {
  if (hash) queryAll(`${hash} > details`).forEach((details) => details.setAttribute("open", ""));
}

// So does an address that ends with it.
function openAddressed() {
  const { hash } = location;
  if (![...queryAll("nav a")].some((link) => /** @type {HTMLAnchorElement} */ (link).hash === hash)) return;
  openPart(hash);
  byId(hash.slice(1)).scrollIntoView();
}

async function domReady() {
  if (document.readyState !== "loading") return;
  await new Promise((resolve) => addEventListener("DOMContentLoaded", resolve, { once: true }));
}

// Chunks are ordered from coarse to fine; the browser may draw after each.
async function loadChunks() {
  for (let number = 1; document.getElementById(`chunk-${number}`); number++) {
    chunks[number] = await inflateElement(`chunk-${number}`);
    schedule();
    await new Promise((resolve) => setTimeout(resolve));
  }
  document.documentElement.dataset.whole = "true";
}

async function start() {
  Object.assign(page, JSON.parse(byId("content").textContent ?? ""));
  page.looks = page.timeline.looks;
  watchTheme(() => {
    rebuild();
    repaintCharts();
  });
  for (const show of [showHead, showAnswer, showSummarised, showStrip, showWhatIf]) show();
  document.documentElement.dataset.shown = "answer";
  const unpacking = Promise.all([inflateElement("columns"), inflateText("names")]);
  await drawnFrame();
  performance.mark("answer");
  const [columns, names] = await unpacking;
  Object.assign(page, { names: JSON.parse(names) });
  chunks[0] = columns;
  loadRows(page.timeline);
  startLegend();
  startView(page.timeline.span, page.opens);
  await layOut(nextTask);
  byId("loading").remove();
  document.documentElement.dataset.shown = "timeline";
  await nextTask();
  for (const watch of [watchKeys, watchPointer, watchHover, watchSearch, watchOverview, watchEvents]) watch();
  requestAnimationFrame(() => requestAnimationFrame(() => performance.mark("useful"))); // after the first paint
  window.traceview = { view, drawn, board, page, selected, area, linked, setView, marksIn, eventCount };
  document.documentElement.dataset.drawn = "true";
  await domReady();
  for (const show of [() => followCover(showFindings), showIterations, showTables, showNotes, showKernels]) {
    await show();
    await nextTask();
  }
  document.documentElement.dataset.shown = "all";
  document.addEventListener("click", ({ target }) => openPart(/** @type {any} */ (target).closest("nav a")?.hash));
  watchAddress();
  openAddressed();
  await loadChunks();
  watchPrinting();
  document.documentElement.dataset.ready = "true";
  await loadCharts();
}

start().catch((error) => {
  document.documentElement.dataset.shown = "all";
  document.getElementById("loading")?.replaceChildren("Cannot draw the timeline: " + error.message);
  throw error;
});
