// The order of things: the answer first, then the library and the timeline.
const page = { looks: [], names: [] };

function showLegend() {
  const used = new Set(page.timeline.used);
  const looks = page.looks.filter((look) => used.has(look) && !["range", "iteration", "skipped"].includes(look));
  byId("legend").replaceChildren(...looks.map((look) => el("span", {}, swatch(look), lookWord(look))));
}

function usedLooks() {
  const used = new Set();
  for (const row of board.groups.flatMap((group) => group.rows))
    if (row.marks) for (const look of new Set(row.marks.look)) used.add(page.looks[look]);
  return [...used];
}

function showSummarised() {
  const { whole, events, limit } = page.timeline, notice = byId("summarised");
  notice.hidden = whole;
  if (!whole) notice.textContent = `Summarised: ${count(events)} events are more than the ${count(limit)} that this page holds in full detail. Neighbours are merged, each mark says how many events it stands for; --from and --to show a stretch in full.`;
}

async function loadLibrary() {
  // The policy at the top of the page allows exactly this text, by its hash.
  const script = el("script", {});
  script.textContent = new TextDecoder().decode(await inflated("library"));
  document.head.append(script);
}

async function start() {
  Object.assign(page, JSON.parse(byId("content").textContent));
  page.looks = page.timeline.looks;
  watchTheme(async () => { await rebuild(); await repaintCharts(); });
  for (const show of [showHead, showDevices, showCards, showSummarised, showBeside, showFindings, showIterations, showTables, showNotes]) show();
  const [buffer, names] = await Promise.all([inflated("columns"), inflated("names"), loadLibrary()]);
  page.names = JSON.parse(new TextDecoder().decode(names));
  loadRows(page, buffer);
  page.timeline.used = usedLooks();
  showLegend();
  startView(page.timeline.span);
  await rebuild();
  watchHands();
  watchHover();
  byId("loading").remove();
  window.traceview = { view, drawn, board, page, setView };
  document.documentElement.dataset.ready = "true";
  await loadCharts();
}

start().catch((error) => {
  byId("loading")?.replaceChildren("The timeline could not be drawn: " + error.message);
  throw error;
});
