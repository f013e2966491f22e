// The order of things: the answer and the timeline at a glance, then finer levels and the library as they arrive.
const page = { looks: [], names: [] };

function showLegend() {
  const used = new Set(page.timeline.used);
  const looks = page.looks.filter((look) => used.has(look) && !["range", "iteration", "skipped"].includes(look));
  byId("legend").replaceChildren(...looks.map((look) => el("span", {}, swatch(look), lookWord(look))));
}

function showSummarised() {
  const { whole, events } = page.timeline, notice = byId("summarised");
  notice.hidden = whole || page.live;
  if (!whole) notice.textContent = `Summarised: this page holds the ${count(events)} events in bins, and in full around the findings, the longest gaps and stalls, and the median, best and worst iteration. A dashed box says how many events it stands for. traceview serve shows every event anywhere; --detail makes a larger page.`;
}

async function loadLibrary() {
  // The policy at the top of the page allows exactly this text, by its hash.
  const script = el("script", {});
  script.textContent = new TextDecoder().decode(await inflated("library"));
  document.head.append(script);
}

function parsed() {
  return new Promise((resolve) => (document.readyState === "loading" ? addEventListener("DOMContentLoaded", resolve, { once: true }) : resolve()));
}

// Chunks come in the order in which they sharpen the picture; the screen may draw between any two.
async function loadChunks() {
  for (let number = 1; byId(`chunk-${number}`); number++) {
    chunks[number] = await inflated(`chunk-${number}`);
    schedule();
    await new Promise((resolve) => setTimeout(resolve));
  }
  document.documentElement.dataset.whole = "true";
}

async function start() {
  Object.assign(page, JSON.parse(byId("content").textContent));
  page.looks = page.timeline.looks;
  watchTheme(async () => { await rebuild(); await repaintCharts(); });
  for (const show of [showHead, showDevices, showCards, showSummarised, showBeside]) show();
  const [buffer, names] = await Promise.all([inflated("columns"), inflated("names")]);
  chunks[0] = buffer;
  page.names = JSON.parse(new TextDecoder().decode(names));
  loadRows(page.timeline);
  showLegend();
  showHint();
  startView(page.timeline.span);
  await rebuild();
  for (const watch of [watchHands, watchHover, watchSearch, watchAddress, watchExport]) watch();
  byId("loading").remove();
  document.documentElement.dataset.shown = "answer";
  requestAnimationFrame(() => requestAnimationFrame(() => performance.mark("useful"))); // when it is on the screen
  window.traceview = { view, drawn, board, page, chunks, selected, measure, search, setView, marksOf, sources, eventsOf, busyOf };
  document.documentElement.dataset.drawn = "true";
  await parsed();
  for (const show of [showFindings, showIterations, showTables, showNotes]) show();
  document.documentElement.dataset.shown = "all";
  readAddress();
  await loadChunks();
  await loadLibrary();
  document.documentElement.dataset.ready = "true";
  await loadCharts();
  watchPrinting();
}

start().catch((error) => {
  document.documentElement.dataset.shown = "all";
  byId("loading")?.replaceChildren("The timeline could not be drawn: " + error.message);
  throw error;
});
