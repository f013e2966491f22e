// Tables of a selected area, or of two side by side with their difference.
import { el } from "./dom.js";
import { countText, duration, percent } from "./words.js";

const MOST = 12; // names of a table

export function figureLine(name, cells) {
  return el("tr", {}, el("th", { scope: "row", text: name, title: name }), ...cells.map((text) => el("td", { text })));
}

export function figureTable(head, lines, options = {}) {
  return el(
    "table",
    options,
    el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col", text })))),
    el("tbody", {}, ...lines),
  );
}

/**
 * Times by name, the longest first; of two areas, the largest difference first. Null without any name.
 * @typedef {Map<string, { time: number, started?: number }>} Sums
 * @param {string} title
 * @param {Sums | null} before
 * @param {Sums} now
 * @param {{ name: string, length: number, counted: boolean }} options `length` is that of the area, in ns
 */
export function sumsTable(title, before, now, { name, length, counted }) {
  const nothing = { time: 0, started: 0 };
  const every = [...new Set([...now.keys(), ...(before?.keys() ?? [])])].map((text) => {
    const [a, b] = [before?.get(text) ?? nothing, now.get(text) ?? nothing];
    return { text, a, b, weight: before ? Math.abs(b.time - a.time) : b.time };
  });
  if (!every.length) return null;
  every.sort((one, other) => other.weight - one.weight || one.text.localeCompare(other.text));
  const started = ({ started = 0 }) => countText(started);
  const lines = every
    .slice(0, MOST)
    .map(({ text, a, b }) =>
      figureLine(
        text,
        before
          ? [
              duration(a.time),
              duration(b.time),
              signed(b.time - a.time),
              ...(counted ? [`${started(a)}, ${started(b)}`] : []),
            ]
          : [duration(b.time), percent(b.time, length), ...(counted ? [started(b)] : [])],
      ),
    );
  const rest = every.length - MOST;
  if (rest > 0) lines.push(figureLine(`${countText(rest)} more`, []));
  const heads = before ? ["A", "B", "B − A"] : ["time", "share"];
  return figureTable([title, ...heads, ...(counted ? [before ? "started in A, B" : "started"] : [])], lines, {
    "data-table": name,
  });
}

function signed(ns) {
  return (ns > 0 ? "+" : ns < 0 ? "−" : "") + duration(Math.abs(ns));
}
