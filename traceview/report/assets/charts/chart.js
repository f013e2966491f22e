// A chart: heading, a picture that Plotly draws when it is near the screen, and the same figures as a table.
// A spec is { id, heading, note, items, picture(width, at), table(), open(at), bare, height }. Its items are what the user
// can point at: { text, place }: description and place in the timeline; `at` is the one that is chosen.
import { inflated } from "../core/columns.js";
import { actionButton, byId, el, softLine } from "../core/dom.js";
import { linkTo } from "../timeline/linked.js";

/** @type {{ all: import("../types").Chart[], watcher: IntersectionObserver | null, last: Promise<void> }} */
export const charts = { all: [], watcher: null, last: Promise.resolve() };

/** @type {{ loaded: Promise<void> | null }} */
const library = { loaded: null };

// Unpacks and runs plotly.js, for the first chart. The browser compiles an asynchronous script beside the page.
async function runLibrary() {
  const { integrity } = byId("library").dataset; // by its hash the content security policy allows exactly this text
  const code = await inflated("library").blob();
  const options = { src: URL.createObjectURL(code), integrity, crossorigin: "anonymous" };
  const script = el("script", options);
  const done = new Promise((resolve, reject) => Object.assign(script, { onload: resolve, onerror: reject }));
  document.head.append(script);
  // Some browsers apply hashes to inline scripts alone.
  await done.catch(async () => document.head.append(el("script", await code.text())));
  URL.revokeObjectURL(options.src);
}

function libraryLoaded() {
  return (library.loaded ??= runLibrary());
}

// A busy browser may never be idle: a chart waits for half a second at most.
function idleTime() {
  const { requestIdleCallback: whenIdle } = globalThis;
  return new Promise((resolve) => (whenIdle ? whenIdle(resolve, { timeout: 500 }) : setTimeout(resolve)));
}

/** @param {import("../types").ChartSpec} spec */
export function chartSection(spec) {
  const stage = el("div", {
    class: "chart",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "chart",
    "aria-label": `${spec.heading}. Arrow keys go from item to item${spec.items.some(({ place }) => place) ? ", Enter shows it in the timeline" : ""}. The Table button shows the same figures.`,
  });
  if (spec.height) stage.style.height = spec.height + "px";
  const status = el("p", { class: "said", role: "status" });
  /** @type {import("../types").Chart} */
  const chart = { spec, stage: /** @type {any} */ (stage), status, at: -1, drawn: false };
  charts.all.push(chart);
  charts.watcher?.observe(stage);
  stage.addEventListener("keydown", (event) => chartKey(chart, event));
  new ResizeObserver(() => chart.drawn && stage.clientWidth && paintChart(chart)).observe(stage);
  const behind = el("div", { class: "behind", id: spec.id + "-table", hidden: true });
  const folded = { class: "small", "aria-expanded": "false", "aria-controls": behind.id };
  const tabled = actionButton("Table", folded, () => toggleTable(chart, behind, tabled));
  return el(
    "section",
    { class: "figure", id: spec.id },
    el("div.figure-head", el("h2", spec.heading), el("span.spacer"), tabled),
    el("div.notes-place", chart.status, softLine(spec.note)),
    stage,
    behind,
  );
}

function toggleTable(chart, behind, button) {
  behind.hidden = !behind.hidden;
  button.setAttribute("aria-expanded", String(!behind.hidden));
  if (!behind.hidden && !behind.firstChild) behind.append(chart.spec.table());
}

/** Draws the chart in an idle moment after those that wait already. @param {import("../types").Chart} chart */
export function drawChart(chart) {
  charts.watcher?.unobserve(chart.stage);
  charts.last = charts.last.then(() => drawInTurn(chart));
}

async function drawInTurn(chart) {
  await libraryLoaded();
  await idleTime();
  chart.drawn = true;
  chart.stage.replaceChildren();
  await paintChart(chart);
  chart.stage.on("plotly_click", ({ points }) => selectItem(chart, points[0].customdata, true));
  chart.stage.dataset.drawn = "true";
}

// Repaints after a change of colours.
export async function repaintCharts() {
  await Promise.all(charts.all.filter(({ drawn }) => drawn).map((chart) => paintChart(chart)));
}

// Paints the chart at `width` pixels, or as wide as its place.
export function paintChart(chart, width) {
  const { traces, layout } = chart.spec.picture(width ?? chart.stage.clientWidth, chart.at);
  return Plotly.react(chart.stage, traces, width ? { ...layout, width } : layout, { displayModeBar: false });
}

// Selects an item: shows its text, outlines it and, with `go`, moves the timeline there.
function selectItem(chart, at, go) {
  const item = chart.spec.items[at];
  if (!item) return;
  chart.at = at;
  chart.status.textContent = item.text;
  const { heading, items, open } = chart.spec;
  if (go) open?.(at);
  if (chart.drawn) paintChart(chart);
  if (go && item.place)
    linkTo({ title: heading, words: "items", places: items.flatMap(({ place }) => place ?? []) }, item.place);
}

function chartKey(chart, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const last = chart.spec.items.length - 1;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity };
  const enter = event.key === "Enter" || event.key === " ";
  if (!enter && !(event.key in steps)) return;
  event.preventDefault();
  event.stopPropagation();
  if (enter) return selectItem(chart, Math.max(0, chart.at), true);
  const next = chart.at + steps[event.key];
  selectItem(chart, chart.at < 0 && event.key !== "End" ? 0 : Math.min(last, Math.max(0, next)), false);
}
