// The bandwidth of copies by size: colour shows the direction, shape the kind of host memory.
import { fieldName } from "../core/export.js";
import { cssColour } from "../core/palette.js";
import { countColumn, durationColumn, table, textColumn, unitColumn } from "../core/table.js";
import { bandwidth, countText, duration, bytesText } from "../core/words.js";
import { chartSection } from "./chart.js";
import { chartLayout } from "./style.js";

const SYMBOLS = { pageable: "x", pinned: "circle", managed: "diamond", device: "square", unknown: "triangle-up" };

export function copyChart(device, on) {
  const { copies_left_out: left } = device,
    copies = [...device.copies].sort((a, b) => copySize(a) - copySize(b));
  if (!copies.length) return null;
  const grouped = copies.some((group) => group.count > 1);
  const kinds = [...new Set(copies.map(copyKind))].sort();
  return chartSection({
    id: fieldName("chart copies " + device.id),
    heading: "Bandwidth of copies by size" + on,
    note: [
      grouped
        ? "Each mark is a group of copies of similar size and duration; a larger mark is more copies."
        : "Each mark is a copy.",
      `Click a mark to show ${grouped ? "its slowest copy" : "it"} in the timeline.`,
      left ? `${countText(left)} copies without size or duration are not shown.` : "",
    ]
      .filter(Boolean)
      .join(" "),
    items: copies.map((group) => copyItem(group, device)),
    picture: (_, at) => copyPicture(copies, kinds, at),
    table: () => copyTable(copies, on),
  });
}

function copyKind({ kind, memory }) {
  return `${kind} ${memory}`;
}

function copySize(group) {
  return group.bytes / group.count;
}

function copyRate(group) {
  return group.bytes / group.ns;
}

// The range of a logarithmic axis around all values, with a margin.
function logRange(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)].map(Math.log10),
    air = Math.max(0.25, 0.06 * (high - low));
  return [low - air, high + air];
}

function copyItem(group, device) {
  const rate = bandwidth(group.bytes, group.ns),
    each = bytesText(Math.round(copySize(group)));
  const text =
    group.count > 1
      ? `${countText(group.count)} copies ${copyKind(group)} of about ${each}, average ${rate}; the slowest, on ${group.stream}, took ${duration(group.end - group.start)}`
      : `copy ${copyKind(group)} of ${each} on ${group.stream} at ${rate}, ${duration(group.ns)}`;
  return {
    text,
    place: { start: group.start, end: group.end, rows: [group.row, "d:" + device.id], text: `copy ${copyKind(group)}` },
  };
}

// A mark that is chosen, `at`, is outlined.
function copyPicture(copies, kinds, at) {
  const traces = kinds.map((name) => {
    const places = copies.flatMap((group, at) => (copyKind(group) === name ? [at] : [])),
      [first] = places.map((at) => copies[at]);
    return {
      type: "scatter",
      mode: "markers",
      name,
      x: places.map((at) => copySize(copies[at])),
      y: places.map((at) => copyRate(copies[at])),
      customdata: places,
      text: places.map(
        (at) =>
          `${countText(copies[at].count)} × ${bytesText(Math.round(copySize(copies[at])))}, ${duration(copies[at].ns / copies[at].count)} each`,
      ),
      hovertemplate: `${name}: %{text}<br>%{y:.3~g} GB/s<extra></extra>`,
      marker: {
        symbol: SYMBOLS[first.memory],
        color: cssColour("--" + first.look),
        opacity: 0.85,
        line: {
          width: places.map((one) => (one === at ? 3 : 1)),
          color: places.map((one) => cssColour(one === at ? "--mark" : "--ink")),
        },
        size: places.map((at) => 8 + 3 * Math.log10(copies[at].count)),
      },
    };
  });
  return {
    traces,
    layout: chartLayout(
      {
        type: "log",
        range: logRange(copies.map(copySize)),
        tickformat: "~s",
        ticksuffix: "B",
        title: { text: "size", standoff: 6 },
        nticks: 6,
      },
      { type: "log", range: logRange(copies.map(copyRate)), tickformat: "~g", title: { text: "GB/s" }, nticks: 7 },
      {
        showlegend: true,
        legend: {
          orientation: "h",
          x: 0,
          y: 1.02,
          yanchor: "bottom",
          itemsizing: "constant",
          itemclick: false,
          itemdoubleclick: false,
        },
      },
    ),
  };
}

function copyTable(copies, on) {
  const caption = "Bandwidth of copies by size" + on;
  return table(
    caption,
    [
      textColumn("copies", copyKind),
      countColumn("count", (group) => group.count),
      unitColumn("size each", "bytes", (group) => Math.round(copySize(group))),
      unitColumn("bandwidth", "bytes_per_ns", ({ bytes, ns }) => (ns ? bytes / ns : null)),
      durationColumn("total time", (group) => group.ns),
      durationColumn("slowest", (group) => group.end - group.start),
      textColumn("stream of the slowest", (group) => group.stream),
    ],
    copies,
    50,
  );
}
