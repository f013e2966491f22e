// Which streams ran at the same time: for each stream of a row, the share of its time in which that of a column is busy.
import { el, headedSection } from "../core/dom.js";
import { fieldName } from "../core/export.js";
import { durationColumn, table, textColumn } from "../core/table.js";
import { countText, duration, middle, percent } from "../core/words.js";

// Returns the section; null for a device with a single stream.
export function streamSection({ id, streams, together, streams_left_out: left }, on) {
  if (streams.length < 2) return null;
  const heading = "Concurrent streams" + on;
  const cut = left ? ` ${countText(left)} less busy streams are not shown.` : "";
  const note = `The share of the row's busy time during which the column's stream is also busy.${cut}`;
  const cell = (i, j) => {
    const [both, busy] = [together[i][j], together[i][i]];
    const title = `${duration(both)} of the ${duration(busy)} of ${streams[i]} overlap with ${streams[j]}`;
    const text = i === j ? "" : both ? percent(both, busy) : "never";
    return el("span", { class: "share", "--share": `${i === j ? 0 : (100 * both) / (busy || 1)}%`, title, text });
  };
  const columns = [
    textColumn("stream", (i) => streams[i]),
    durationColumn("busy", (i) => together[i][i]),
    ...streams.map((name, j) => ({
      ...durationColumn(name, (i) => together[i][j]),
      heading: middle(name, 22),
      scales: undefined,
      cell: (i) => cell(i, j),
    })),
  ];
  const options = { class: "figure", id: fieldName("chart streams " + id) };
  return headedSection(options, heading, note, table(heading, columns, [...streams.keys()]));
}
