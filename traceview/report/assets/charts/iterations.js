// The composition of each iteration as bars; the spread and all figures as tables.
import { actionButton, byId, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { cssColour, lookWord } from "../core/palette.js";
import { countColumn, durationColumn, textColumn, table } from "../core/table.js";
import { axisUnit, countText, duration } from "../core/words.js";
import { linkTo } from "../timeline/linked.js";
import { chartParts } from "./chart.js";
import { chartLayout, barStyle, plotlyText } from "./style.js";

const WALL = "wall"; // the only figure where there is no GPU work

function iterationLook(part) {
  return part === WALL ? "call_api" : part.replace("exposed_", "");
}

function iterationWord(part) {
  if (part === WALL) return "time on the host";
  return part.startsWith("exposed_") ? "exposed " + lookWord(iterationLook(part)) : lookWord(part);
}

export function showIterations() {
  const found = page.iterations;
  const each = byId("each");
  if ("not_measured" in found) return each.replaceChildren(el("p", { text: found.not_measured }));
  const aside = found.skipped ? `; ${found.skipped} skipped (${found.skipped_why})` : "";
  const origin = found.source === "range" ? found.range : `${found.range}, found without ranges`;
  const also = found.candidates.map(
    (other) => `${other.name} (${countText(other.count)} of ${duration(other.time_ns)})`,
  );
  const text =
    `${countText(found.count)} of ${duration(found.time_ns)}${found.unprofiled}: ${origin}; ` +
    `confidence ${found.confidence}${aside}.` +
    (also.length ? ` Also repeating: ${also.join(", ")}.` : "");
  each.replaceChildren(
    el("p", { class: "soft", text }),
    el("div", { class: "iterations" }, el("div", { id: "bars", class: "figure" }), spreadTable(found)),
  );
}

function spreadTable(found) {
  const rows = Object.entries(found.spreads).filter(([, spread]) => spread.p95);
  return table(
    "Iterations, spread",
    [
      textColumn("per iteration", ([name]) => name.replace(/_ns$/, "").replaceAll("_", " ")),
      durationColumn("median", ([, spread]) => spread.median),
      durationColumn("5%", ([, spread]) => spread.p5),
      durationColumn("95%", ([, spread]) => spread.p95),
    ],
    rows,
  );
}

export function showIterationChart(found) {
  const parts = page.looks
    .flatMap((look) => [look, "exposed_" + look])
    .filter((part) => found.bars.some((bar) => bar.parts[part]));
  if (!parts.length) {
    parts.push(WALL);
    for (const bar of found.bars) bar.parts = { [WALL]: bar.wall };
  }
  const grouped = found.bars.some((bar) => bar.count > 1);
  byId("bars").replaceChildren(
    ...chartParts(
      {
        id: "bars-chart",
        heading: "What each iteration was made of",
        looks: parts.map((part) => [iterationLook(part), iterationWord(part)]),
        note: grouped
          ? "Each bar is the average of consecutive iterations. Click a bar to show its slowest iteration in the timeline."
          : "Click a bar to show the iteration in the timeline.",
        items: found.bars.map((bar, at) => iterationItem(bar, at, parts)),
        picture: () => iterationPicture(found.bars, parts, grouped),
        table: () => iterationTable(found),
      },
      "h3",
    ),
  );
}

function barName({ first, last, count: of }) {
  return of > 1 ? `${of} iterations, ${first} to ${last}` : first;
}

function iterationItem(bar, at, parts) {
  const { slowest } = bar,
    wall = duration(slowest.end - slowest.start);
  const made = parts
    .filter((part) => bar.parts[part])
    .map((part) => `${iterationWord(part)} ${duration(bar.parts[part] / bar.count)}`);
  const head = bar.count > 1 ? `average of ${barName(bar)}` : `${barName(bar)}, ${wall}`;
  const tail = bar.count > 1 ? `; slowest: ${slowest.name}, ${wall}` : "";
  return {
    text: `${head}${bar.skipped ? ", skipped" : ""}: ${made.join(", ")}${tail}`,
    place: { start: slowest.start, end: slowest.end, rows: ["ruler"], text: slowest.name },
    mark: { x0: at - 0.5, x1: at + 0.5 },
  };
}

function iterationPicture(bars, parts, grouped) {
  const x = bars.map((_, at) => at);
  const names = bars.map((bar) => plotlyText(barName(bar)) + (bar.skipped ? " (skipped)" : ""));
  const { top, cut, scale, unit } = barTop(bars);
  const traces = parts.map((part) => ({
    type: "bar",
    x,
    y: bars.map((bar) => (bar.parts[part] ?? 0) / bar.count / scale),
    name: iterationWord(part),
    text: names,
    customdata: x,
    textposition: "none",
    hovertemplate: `%{text}<br>${iterationWord(part)}: %{y:.3~f} ${unit}<extra></extra>`,
    marker: barStyle(iterationLook(part), bars.length > 60 ? 0 : 0.5),
  }));
  const step = Math.max(1, Math.ceil(x.length / 20));
  const ticks = x.filter((at) => at % step === 0);
  const title = grouped ? `average ${unit} per iteration` : unit;
  return {
    traces,
    layout: chartLayout(
      {
        tickvals: ticks,
        ticktext: ticks.map((at) => plotlyText(bars[at].first.match(/-?\d+/)?.[0] ?? String(bars[at].at))),
        title: { text: "iteration", standoff: 6 },
        showgrid: false,
        zeroline: false,
        range: [-0.6, x.length - 0.4],
      },
      { title: { text: title }, range: [0, top] },
      { annotations: cut, bargap: x.length > 60 ? 0 : 0.2 },
    ),
  };
}

// A bar far above the others is cut and labelled with its sum, so that the others stay readable.
function barTop(bars) {
  const lengths = bars.map((bar) => Object.values(bar.parts).reduce((sum, ns) => sum + ns, 0) / bar.count);
  const [scale, unit] = axisUnit(Math.max(...lengths.filter((_, at) => !bars[at].skipped), 0) || Math.max(...lengths));
  const sums = lengths.map((ns) => ns / scale);
  const usual = Math.max(0, ...sums.filter((_, at) => !bars[at].skipped)),
    highest = Math.max(...sums);
  if (!usual || highest < 2.5 * usual) return { top: 1.05 * highest, cut: [], scale, unit };
  const top = 1.25 * usual;
  const cut = sums.flatMap((sum, at) =>
    sum > top
      ? [
          {
            x: at,
            y: top,
            yanchor: "top",
            text: `↑ ${duration(scale * sum)}`,
            showarrow: false,
            bgcolor: cssColour("--card"),
            font: { size: 11, color: cssColour("--ink") },
          },
        ]
      : [],
  );
  return { top, cut, scale, unit };
}

const FIRST_ITERATIONS = 50;

function iterationTable({ each, fields, causes }) {
  const placeOf = ({ name, start, end }) => ({ start, end, rows: ["ruler"], text: name });
  const group = { title: "Iteration", words: "iterations" };
  const go = (one) =>
    actionButton(one.name, { class: "small" }, () => linkTo({ ...group, places: each.map(placeOf) }, placeOf(one)));
  const made = table(
    "Every iteration",
    [
      textColumn("iteration", (one) => one.name, go),
      durationColumn("start", (one) => one.start),
      textColumn("skipped", (one) => (one.skipped ? "yes" : "")),
      ...fields.map((field, at) => durationColumn(field.replaceAll("_", " "), (one) => one.ns[at])),
      ...causes.map((cause) => durationColumn("idle " + cause.replaceAll("_", " "), (one) => one.idle[cause] ?? 0)),
      countColumn("kernels", (one) => one.kernels),
    ],
    each,
    FIRST_ITERATIONS,
  );
  const all = "count" in page.iterations ? page.iterations.count : 0;
  const cut = `The ${countText(each.length)} slowest of ${countText(all)}; --json writes all of them.`;
  if (each.length < all) made.prepend(el("p", { class: "soft", text: cut }));
  return made;
}
