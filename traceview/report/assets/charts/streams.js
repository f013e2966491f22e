// Which streams ran at the same time.
import { fieldName } from "../core/export.js";
import { cssColour } from "../core/palette.js";
import { durationColumn, textColumn, table } from "../core/table.js";
import { countText, middle, duration, percent } from "../core/words.js";
import { chartLayout, plotlyText } from "./style.js";

const SPACIOUS = 5;

const LABELLED = 10; // above these numbers of streams, cells have room for less text; the tip and the table have all of it

export function streamChart(device, on) {
  const { streams, together, streams_left_out: left } = device,
    n = streams.length;
  if (n < 2) return null;
  return {
    id: fieldName("chart streams " + device.id),
    heading: "Concurrent streams" + on,
    bare: true,
    columns: n,
    height: Math.max(210, 80 + 40 * n),
    note:
      "The share of the row's busy time during which the column's stream is also busy." +
      (left ? ` ${countText(left)} less busy streams are not shown.` : ""),
    items: together.flatMap((row, i) => row.map((_, j) => streamItem(streams, together, i, j))),
    picture: () => streamPicture(streams, together),
    table: () => streamTable(streams, together, on),
  };
}

function streamItem(streams, together, i, j) {
  const busy = together[i][i],
    text =
      i === j
        ? `${streams[i]} was busy for ${duration(busy)}`
        : `${duration(together[i][j])} of the ${duration(busy)} of ${streams[i]} (${percent(together[i][j], busy)}) overlap with ${streams[j]}`;
  return { text, place: null, mark: { x0: j - 0.5, x1: j + 0.5, yref: "y", y0: i - 0.5, y1: i + 0.5 } };
}

function streamPicture(streams, together) {
  const n = streams.length,
    places = streams.map((_, at) => at),
    names = streams.map((name) => plotlyText(middle(name, 22)));
  const share = (i, j) => (i === j ? null : together[i][i] ? together[i][j] / together[i][i] : 0);
  const each = (cell) => places.map((i) => places.map((j) => cell(i, j)));
  const word = (i, j) =>
    i === j
      ? ""
      : !together[i][j]
        ? n <= SPACIOUS
          ? "never"
          : "0"
        : (n <= SPACIOUS ? duration(together[i][j]) + "<br>" : "") + percent(together[i][j], together[i][i]);
  const traces = [
    {
      type: "heatmap",
      x: places,
      y: places,
      z: each(share),
      zmin: 0,
      zmax: 1,
      xgap: 2,
      ygap: 2,
      showscale: false,
      customdata: each((i, j) => i * n + j),
      hoverongaps: false,
      colorscale: [
        [0, cssColour("--sunk")],
        [1, cssColour("--compute")],
      ],
      text: each(word),
      texttemplate: n <= LABELLED ? "%{text}" : "",
      hovertext: each((i, j) => plotlyText(streamItem(streams, together, i, j).text)),
      hoverinfo: "text",
    },
  ];
  const busy = names.map((name, at) => `${name}<br>${duration(together[at][at])}`);
  const axis = {
    tickvals: places,
    showgrid: false,
    zeroline: false,
    showline: false,
    ticks: "",
    range: [-0.5, n - 0.5],
  };
  return {
    traces,
    layout: chartLayout(
      {
        ...axis,
        ticktext: names,
        side: "top",
        tickangle: n > LABELLED || names.some((name) => name.length > 60 / n) ? -35 : 0,
      },
      { ...axis, ticktext: busy, range: [n - 0.5, -0.5] },
      { margin: { l: 60, r: 10, t: 30, b: 10 }, height: Math.max(210, 80 + 40 * n) },
    ),
  };
}

function streamTable(streams, together, on) {
  const caption = "Concurrent streams" + on,
    rows = streams.map((_, at) => at);
  return table(
    caption,
    [textColumn("stream", (i) => streams[i]), ...streams.map((name, j) => durationColumn(name, (i) => together[i][j]))],
    rows,
  );
}
