// Tables of a selected area, or of two side by side with their difference, and trees of times.
import { actionButton, el } from "./dom.js";
import { countColumn, durationColumn, shareColumn, sortableTable, textColumn, unitColumn } from "./table.js";

const MOST = 12; // names of a table at first
const LEAST = 0.001; // share of the time of a tree; parts below it are left out

/**
 * Times by name, the longest first; of two areas, the largest difference first. Null without any name.
 * @param {string} title
 * @param {import("../types").Sums | null} before
 * @param {import("../types").Sums} now
 * @param {{ name: string, length: number, counted: boolean, open?: (name: string) => void }} options `length` is that of the
 *   area in ns, `open` what a click on a row does
 */
export function sumsTable(title, before, now, { name, length, counted, open }) {
  const nothing = { time: 0, started: 0 };
  const rows = [...new Set([...now.keys(), ...(before?.keys() ?? [])])].map((text) => {
    const [a, b] = [before?.get(text) ?? nothing, now.get(text) ?? nothing];
    return { text, a, b, weight: before ? Math.abs(b.time - a.time) : b.time };
  });
  if (!rows.length) return null;
  rows.sort((one, other) => other.weight - one.weight || one.text.localeCompare(other.text));
  const cell = ({ text }) => (open ? actionButton(text, { class: "plain" }, () => open(text)) : el("span", text));
  const named = textColumn(
    title,
    ({ text }) => text,
    (row) => Object.assign(cell(row), { title: row.text }),
  );
  const figures = before
    ? [
        durationColumn("A", ({ a }) => a.time),
        durationColumn("B", ({ b }) => b.time),
        unitColumn("B − A", "signed_ns", ({ a, b }) => b.time - a.time),
        ...(counted
          ? [countColumn("started in A", ({ a }) => a.started), countColumn("in B", ({ b }) => b.started)]
          : []),
      ]
    : [
        durationColumn("time", ({ b }) => b.time),
        shareColumn("share", ({ b }) => [b.time, length]),
        ...(counted ? [countColumn("started", ({ b }) => b.started)] : []),
      ];
  return el("div", { "data-table": name }, sortableTable(`${title} of the area`, [named, ...figures], rows, MOST));
}

/**
 * A tree whose headings sort the parts of each part.
 * @param {string} title
 * @param {{ heading: string, value: (part: any) => number, text: (part: any) => string }[]} figures
 * @param {import("../types").TreePart[]} roots
 * @param {string} label
 */
export function treeTable(title, figures, roots, label = title) {
  const place = el("div", { class: "table tree", tabindex: 0, role: "region", "aria-label": label });
  const least = LEAST * roots.reduce((sum, { time }) => sum + time, 0);
  const draw = (by, focused = "") => {
    const lines = (parts, depth) =>
      parts
        .filter(({ time }) => time >= least)
        .sort((a, b) => figures[by].value(b) - figures[by].value(a))
        .flatMap((part) => [line(part, depth), ...(part.open ? lines(part.inner, depth + 1) : [])]);
    const line = (part, depth) => {
      const flip = () => {
        part.open = !part.open;
        draw(by, part.name + depth);
      };
      const options = { class: "small", "aria-expanded": String(Boolean(part.open)), "data-key": part.name + depth };
      const fold = part.inner.length ? actionButton(part.open ? "▾" : "▸", options, flip) : null;
      const name = el("th", { scope: "row", "--depth": depth, title: part.name }, fold, ` ${part.name}`);
      return el("tr", name, ...figures.map(({ text }) => el("td", text(part))));
    };
    const heads = figures.map(({ heading }, at) => {
      const options = { class: "sort", "data-key": heading + at };
      const order = at === by ? "descending" : null;
      return el(
        "th",
        { scope: "col", "aria-sort": order },
        actionButton(heading, options, () => draw(at, heading + at)),
      );
    });
    const head = el("thead", el("tr", el("th", { scope: "col", class: "words", text: title }), ...heads));
    place.replaceChildren(el("table", head, el("tbody", ...lines(roots, 0))));
    for (const button of place.querySelectorAll("button")) if (button.dataset.key === focused) return button.focus();
  };
  draw(0);
  return place;
}
