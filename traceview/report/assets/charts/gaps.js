// The idle gaps of a device by length: the total time of each length, by cause.
import { fieldName } from "../core/export.js";
import { page } from "../core/page.js";
import { lookWord } from "../core/palette.js";
import { countColumn, durationColumn, textColumn, table } from "../core/table.js";
import { axisUnit, countText, duration } from "../core/words.js";
import { marksIn } from "../timeline/levels.js";
import { allRows } from "../timeline/rows.js";
import { chartLayout, barStyle } from "./style.js";

const MAX_BORDERS = 8; // that all have a label

function gapLabel(from, to) {
  const [scale, unit, next] =
    from < 1e3 ? [1, "ns", "µs"] : from < 1e6 ? [1e3, "µs", "ms"] : from < 1e9 ? [1e6, "ms", "s"] : [1e9, "s", "ks"];
  return to / scale < 1000 ? `${from / scale}–${to / scale} ${unit}` : `${from / scale} ${unit}–1 ${next}`;
}

function borderText(ns) {
  const [scale, unit] = axisUnit(ns);
  return `${ns / scale} ${unit}`;
}

// The position of a bar: 1, 2, 5, 10, ... become 0, 1, 2, 3, ... so that missing lengths leave a hole.
function gapPlace(from) {
  const power = String(from).length - 1;
  return 3 * power + { 1: 0, 2: 1, 5: 2 }[from / 10 ** power];
}

export function gapChart(device, on) {
  const { gaps } = device;
  if (!gaps.length) return null;
  const causes = Object.keys(page.cause_words).filter((cause) => gaps.some((gap) => gap.causes[cause]));
  return {
    id: fieldName("chart gaps " + device.id),
    heading: "Idle gaps by length" + on,
    note: "Total time in gaps of each length, by cause. The number above a bar is the count of gaps. Click a bar to show its longest gap in the timeline.",
    looks: causes.map((cause) => ["idle_" + cause, lookWord("idle_" + cause)]),
    items: gaps.map((gap) => gapItem(gap, device)),
    picture: () => gapPicture(gaps, causes),
    table: () => gapTable(gaps, causes, on),
  };
}

function gapSum(gap) {
  return Object.values(gap.causes).reduce((sum, ns) => sum + ns, 0);
}

function gapItem(gap, device) {
  const why = Object.entries(gap.causes)
    .sort((a, b) => b[1] - a[1])
    .map(([cause, ns]) => `${lookWord("idle_" + cause)} ${duration(ns)}`);
  const at = gapPlace(gap.from);
  return {
    text: `${countText(gap.count)} gaps of ${gapLabel(gap.from, gap.to)}, ${duration(gapSum(gap))} in total: ${why.join(", ")}; longest ${duration(gap.end - gap.start)}`,
    place: { start: gap.start, end: gap.end, rows: ["d:" + device.id], text: "the longest gap" },
    places: () => gapsOf(device.id, gap),
    mark: { x0: at - 0.5, x1: at + 0.5 },
  };
}

// The gaps of a bar, as far as the page has them as single events.
function gapsOf(device, { from, to }) {
  const rows = ["d:" + device],
    row = allRows().find(({ id, kind }) => kind === "idle" && id === rows[0]);
  const marks = marksIn(row?.lanes[0]?.exact);
  const numbers = [...Array(marks?.n ?? 0).keys()];
  const lengthOf = (i) => marks.end[i] - marks.start[i];
  return numbers.flatMap((i) =>
    lengthOf(i) >= from && lengthOf(i) < to ? [{ start: marks.start[i], end: marks.end[i], rows }] : [],
  );
}

function gapPicture(gaps, causes) {
  const x = gaps.map((gap) => gapPlace(gap.from)),
    [scale, unit] = axisUnit(Math.max(...gaps.map(gapSum))),
    sums = gaps.map((gap) => gapSum(gap) / scale);
  const names = gaps.map(
    (gap) => `${countText(gap.count)} gaps of ${gapLabel(gap.from, gap.to)}, ${duration(gapSum(gap))}`,
  );
  const common = { x, customdata: gaps.map((_, at) => at), text: names };
  const traces = causes.map((cause) => ({
    ...common,
    type: "bar",
    y: gaps.map((gap) => (gap.causes[cause] ?? 0) / scale),
    name: lookWord("idle_" + cause),
    textposition: "none",
    hovertext: gaps.map(
      (gap, at) => `${names[at]}<br>${lookWord("idle_" + cause)}: ${duration(gap.causes[cause] ?? 0)}`,
    ),
    hovertemplate: "%{hovertext}<extra></extra>",
    marker: barStyle("idle_" + cause),
  }));
  traces.push({
    ...common,
    type: "scatter",
    mode: "text",
    y: sums,
    text: spacedCounts(gaps, x, sums),
    textposition: "top center",
    hoverinfo: "skip",
    showlegend: false,
    cliponaxis: false,
    textfont: { size: x.at(-1) - x[0] > MANY_BARS ? 9 : 11 },
  });
  // A label stands at the border of two bars; where there are many, only powers of ten have one.
  const first = x[0],
    last = x.at(-1) + 1;
  const borders = Array.from({ length: last - first + 1 }, (_, at) => first + at);
  const ticks = borders.filter((place) => borders.length <= MAX_BORDERS || place % 3 === 0);
  const texts = ticks.map((place) => borderText([1, 2, 5][place % 3] * 10 ** Math.floor(place / 3)));
  return {
    traces,
    layout: chartLayout(
      {
        tickvals: ticks.map((place) => place - 0.5),
        ticktext: texts,
        tickfont: { size: 11 },
        ticks: "outside",
        title: { text: "length of a gap", standoff: 6 },
        showgrid: false,
        zeroline: false,
        range: [x[0] - 0.6, x.at(-1) + 0.6],
      },
      { title: { text: unit }, range: [0, Math.max(...sums) * 1.13] },
    ),
  };
}

const MANY_BARS = 14;
const MAX_LETTERS = 4; // of two labels side by side where bars are many

// The counts of gaps; where bars are many, a low bar leaves out a count that would touch that of a higher one.
function spacedCounts(gaps, x, sums) {
  const texts = gaps.map(({ count }) => shortCount(count));
  if (x.at(-1) - x[0] <= MANY_BARS) return texts;
  const letters = new Map();
  const highest = [...texts.keys()].sort((a, b) => sums[b] - sums[a]);
  for (const at of highest) {
    const wide = texts[at].length;
    if ([-1, 1].some((side) => (letters.get(x[at] + side) ?? -wide) + wide > MAX_LETTERS)) texts[at] = "";
    else letters.set(x[at], wide);
  }
  return texts;
}

// 362,891 as 363k, which fits above a bar.
function shortCount(number) {
  const [scale, unit] = number < 1e3 ? [1, ""] : number < 1e6 ? [1e3, "k"] : [1e6, "M"];
  return (number / scale).toFixed(scale > 1 && number / scale < 10 ? 1 : 0) + unit;
}

function gapTable(gaps, causes, on) {
  const caption = "Idle gaps by length" + on;
  return table(
    caption,
    [
      textColumn("length", (gap) => gapLabel(gap.from, gap.to)),
      countColumn("gaps", (gap) => gap.count),
      durationColumn("total", gapSum),
      ...causes.map((cause) => durationColumn(cause.replaceAll("_", " "), (gap) => gap.causes[cause] ?? 0)),
      durationColumn("longest", (gap) => gap.end - gap.start),
    ],
    gaps,
  );
}
