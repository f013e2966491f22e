// The idle gaps of a device by length: the total time of each length as a bar of its causes, in a table.
import { actionButton, el, headedSection } from "../core/dom.js";
import { fieldName } from "../core/export.js";
import { page } from "../core/page.js";
import { lookWord, partsBar, swatch } from "../core/palette.js";
import { countColumn, durationColumn, table, textColumn } from "../core/table.js";
import { duration } from "../core/words.js";
import { marksIn } from "../timeline/levels.js";
import { linkTo } from "../timeline/linked.js";
import { allRows } from "../timeline/rows.js";

function gapLabel(from, to) {
  const [scale, unit, next] =
    from < 1e3 ? [1, "ns", "µs"] : from < 1e6 ? [1e3, "µs", "ms"] : from < 1e9 ? [1e6, "ms", "s"] : [1e9, "s", "ks"];
  return to / scale < 1000 ? `${from / scale}–${to / scale} ${unit}` : `${from / scale} ${unit}–1 ${next}`;
}

function gapSum(gap) {
  return Object.values(gap.causes).reduce((sum, ns) => sum + ns, 0);
}

// Returns the section; null for a device without gaps.
export function gapSection(device, on) {
  const { gaps } = device,
    heading = "Idle gaps by length" + on;
  if (!gaps.length) return null;
  const causes = Object.keys(page.cause_words).filter((cause) => gaps.some((gap) => gap.causes[cause]));
  const looks = causes.map((cause) => el("li", swatch("idle_" + cause), lookWord("idle_" + cause)));
  const open = (gap) => openGaps(device.id, gap);
  return headedSection(
    { class: "figure", id: fieldName("chart gaps " + device.id) },
    heading,
    "The total time of the gaps of each length. A click on a row shows its longest gap.",
    el("ul.looks", ...looks),
    table(heading, gapColumns(gaps, causes, open), gaps, Infinity, { open }),
  );
}

function gapColumns(gaps, causes, open) {
  const sums = gaps.map(gapSum),
    most = Math.max(...sums),
    total = sums.reduce((sum, ns) => sum + ns, 0);
  const bar = (gap) => {
    const parts = causes.map((cause) => ({
      look: "idle_" + cause,
      word: lookWord("idle_" + cause),
      ns: gap.causes[cause],
    }));
    const made = partsBar(
      gapLabel(gap.from, gap.to),
      parts.filter(({ ns }) => ns),
      duration,
    );
    made.style.width = `${(100 * gapSum(gap)) / most}%`;
    return made;
  };
  return [
    textColumn("length", (gap) => gapLabel(gap.from, gap.to)),
    { heading: "by cause", field: "share_fraction", value: (gap) => gapSum(gap) / total, cell: bar, words: true },
    durationColumn("total", gapSum),
    countColumn("gaps", (gap) => gap.count),
    ...causes.map((cause) => ({ field: `${cause}_ns`, value: (gap) => gap.causes[cause] ?? 0 })),
    {
      ...durationColumn("longest", lengthOf),
      scales: undefined,
      cell: (gap) => actionButton(duration(lengthOf(gap)), { class: "small" }, () => open(gap)),
    },
  ];
}

function lengthOf({ start, end }) {
  return end - start;
}

// Selects the longest of the gaps of a length, and with it all that the page has as single events.
function openGaps(device, { from, to, start, end }) {
  const rows = ["d:" + device],
    row = allRows().find(({ id, kind }) => kind === "idle" && id === rows[0]);
  const marks = marksIn(row?.lanes[0]?.exact);
  const every = [...Array(marks?.n ?? 0).keys()].map((i) => ({ start: marks.start[i], end: marks.end[i], rows }));
  const places = every.filter((gap) => lengthOf(gap) >= from && lengthOf(gap) < to);
  const title = `Idle gaps of ${gapLabel(from, to)}`;
  return linkTo({ title, words: "gaps", places }, { start, end, rows, text: "the longest gap" });
}
