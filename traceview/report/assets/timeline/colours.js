// The tint of each mark, and the tints that the reader hides. Kernels have the colour of their class, name or family.
import { loadedFigures } from "../charts/figures.js";
import { page } from "../core/page.js";
import { RANGE_COLOURS, SERIES_COLOURS } from "../core/palette.js";

/**
 * What colours kernels, the tints that are hidden, and for each name its place among the series of colours.
 * @type {{ by: string, hidden: Record<number, boolean>, series: string[], seriesOf: Uint8Array }}
 */
export const colours = { by: "class", hidden: {}, series: [], seriesOf: new Uint8Array(0) };

// Whether the marks of a row have a colour for each name.
export function isRange(kind) {
  return kind === "range" || kind === "projected" || kind === "sample";
}

export function seriesTint(place) {
  return page.looks.length + RANGE_COLOURS + place;
}

// A function from the index of a mark to the number of its tint in `palette`.
export function tintFunction(kind, { name, look }) {
  const looks = page.looks.length;
  if (isRange(kind)) return (i) => looks + (name[i] % RANGE_COLOURS);
  if (kind !== "stream" || colours.by === "class") return (i) => look[i];
  const kernels = ["compute", "communication"].map((one) => page.looks.indexOf(one)),
    { seriesOf } = colours;
  return (i) => (kernels.includes(look[i]) ? seriesTint(seriesOf[name[i]]) : look[i]);
}

// Colours kernels by class, name or family. The names or families with the most time have colours of their own.
export function colourBy(by) {
  Object.assign(colours, { by, hidden: {}, series: [], seriesOf: new Uint8Array(page.names.length) });
  if (by === "class") return;
  const key = new Map(),
    total = new Map();
  for (const [, name, , family, , , , , , ns] of loadedFigures()?.shapes ?? []) {
    const group = by === "family" ? family : name;
    if (!key.has(name)) key.set(name, group);
    total.set(group, (total.get(group) ?? 0) + ns);
  }
  const order = [...total.keys()].sort((a, b) => total.get(b) - total.get(a));
  colours.series = order.slice(0, SERIES_COLOURS);
  const place = new Map(colours.series.map((group, at) => [group, at]));
  page.names.forEach((name, number) => {
    colours.seriesOf[number] = place.get(key.get(name)) ?? SERIES_COLOURS;
  });
}
