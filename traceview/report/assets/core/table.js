// Tables: formatted cells on the page, plain numbers in the CSV file. The first column names the row.
import { actionButton, el } from "./dom.js";
import { fieldName, saveCsv } from "./export.js";
import { RATES, SIZES, TIMES, columnTexts, countText, duration, operations, percent, ratio } from "./words.js";

/** @typedef {import("../types").TableColumn} TableColumn */
/** @typedef {import("../types").TableOptions} TableOptions */

/** @type {Record<string, [import("../types").Scales, string]>} */
const SCALES = { ns: [TIMES, "_ns"], bytes: [SIZES, "_bytes"], bytes_per_ns: [RATES, "_gb_per_s"] };
/** @type {Record<string, (value: any) => string | Node>} */
const UNIT_TEXT = {
  text: String,
  code: (text) => el("span.mono", text),
  id: String,
  count: countText,
  fraction: (share) => percent(share, 1),
  ratio,
  flag: (value) => (value ? "yes" : "no"),
  flops: operations,
  flops_per_s: (rate) => `${operations(rate)}/s`,
  signed_ns: (ns) => (ns > 0 ? "+" : "") + duration(ns),
};
/** @type {Record<string, string>} */
const UNIT_SUFFIX = { fraction: "_fraction", flops_per_s: "_per_s", signed_ns: "_ns" };

/**
 * A column of values in one unit: those of declared tables (traceview/model/columns.py). Unknown values are null.
 *
 * @param {string} heading
 * @param {string} unit
 * @param {(row: any) => any} value
 * @returns {TableColumn}
 */
export function unitColumn(heading, unit, value) {
  const known = (row) => value(row) ?? "";
  if (SCALES[unit]) {
    const [scales, suffix] = SCALES[unit];
    const cell = (row) => columnTexts([known(row)], scales)[0];
    return { heading, cell, scales, field: fieldName(heading, suffix), value: known };
  }
  return {
    heading,
    cell: (row) => (value(row) === null ? "-" : UNIT_TEXT[unit](value(row))),
    field: fieldName(heading, UNIT_SUFFIX[unit]),
    value: known,
    words: unit === "text" || unit === "code",
  };
}

/**
 * @param {string} heading
 * @param {TableColumn["value"]} value
 * @param {TableColumn["cell"]} [cell] what the page shows, if not the text itself
 * @returns {TableColumn}
 */
export function textColumn(heading, value, cell) {
  const column = unitColumn(heading, "text", value);
  return cell ? { ...column, cell } : column;
}

/** @type {(heading: string, value: (row: any) => number) => TableColumn} */
export const countColumn = (heading, value) => unitColumn(heading, "count", value);

/** @type {(heading: string, value: (row: any) => number | null) => TableColumn} */
export const durationColumn = (heading, value) => unitColumn(heading, "ns", value);

/**
 * @param {string} heading
 * @param {(row: any) => [part: number, whole: number]} share
 */
export function shareColumn(heading, share) {
  return unitColumn(heading, "fraction", (row) => {
    const [part, whole] = share(row);
    return whole ? part / whole : null;
  });
}

/**
 * The columns, with the figures of these rows in one unit a column.
 *
 * @param {TableColumn[]} columns
 * @param {any[]} rows
 */
export function withUnits(columns, rows) {
  return columns.map((column) => {
    if (!column.scales) return column;
    const texts = columnTexts(rows.map(column.value), column.scales);
    const byRow = new Map(rows.map((row, at) => [row, texts[at]]));
    return { ...column, cell: (row) => byRow.get(row) ?? column.cell?.(row) ?? "" };
  });
}

/**
 * @param {TableColumn[]} columns
 * @param {any} row
 * @param {{ name?: string, open?: (row: any) => void }} options
 */
export function tableRow(columns, row, { name, open } = {}) {
  const cells = columns.flatMap(({ cell, words }) => (cell ? [{ content: cell(row), words }] : []));
  const click = ({ target }) => target.closest("button") || getSelection()?.toString() || open?.(row);
  return el(
    "tr",
    { class: [name, open && "opens"].filter(Boolean).join(" ") || null, onclick: open ? click : null },
    ...cells.map(({ content, words }, place) =>
      place ? el("td", { class: words ? wordsClass(content) : null }, content) : el("th", { scope: "row" }, content),
    ),
  );
}

const SHORT = 24; // letters of words that stay on one line

/** @param {string | Node} content */
function wordsClass(content) {
  const text = typeof content === "string" ? content : (content.textContent ?? "");
  return text.length <= SHORT ? "words short" : "words";
}

/** @param {TableColumn} column @param {TableOptions["sort"]} sort */
function headCell({ heading = "", words }, sort) {
  const name = words ? "words" : null;
  if (!sort) return el("th", { scope: "col", class: name, text: heading });
  const order = sort.heading !== heading ? null : sort.down ? "descending" : "ascending";
  const button = actionButton(heading, { class: "sort" }, () => sort.by(heading));
  return el("th", { scope: "col", class: name, "aria-sort": order }, button);
}

/**
 * @param {string} caption
 * @param {TableColumn[]} all
 * @param {any[]} rows
 * @param {number} most rows to show at first
 * @param {TableOptions} options
 */
export function table(caption, all, rows, most = Infinity, { sort, open } = {}) {
  const columns = all.filter(({ cell }) => cell);
  const written = withUnits(all, rows);
  const line = (row) => tableRow(written, row, { open });
  const body = el("tbody", ...rows.slice(0, most).map(line));
  const under = el("div.under");
  if (rows.length > most) {
    const rest = actionButton(`Show all ${countText(rows.length)}`, { class: "small" }, () => {
      body.append(...rows.slice(most).map(line));
      rest.remove();
    });
    under.append(rest);
  }
  const title = "Save this table, all of its rows, as CSV";
  const named = { class: "small", "aria-label": `Save as CSV: ${caption}`, title };
  under.append(actionButton("CSV", named, () => saveCsv(caption, all, rows)));
  return el(
    "div.tabled",
    el(
      "div",
      { class: "table", tabindex: 0, role: "region", "aria-label": caption },
      el(
        "table",
        el("caption.hidden", caption),
        el("thead", el("tr", ...columns.map((column) => headCell(column, sort)))),
        body,
      ),
    ),
    under,
  );
}

/**
 * A table whose headings sort its rows; their order is the given one at first, or that of `state`.
 *
 * @param {string} caption
 * @param {TableColumn[]} columns
 * @param {any[]} rows
 * @param {number} most
 * @param {{ state?: { sort: string, down: boolean }, open?: TableOptions["open"] }} options
 */
export function sortableTable(caption, columns, rows, most, { state = { sort: "", down: true }, open } = {}) {
  const place = el("div");
  const draw = () => {
    const sort = { heading: state.sort, down: state.down, by };
    place.replaceChildren(table(caption, columns, sortedRows(rows, columns, state), most, { sort, open }));
  };
  const by = (heading) => {
    sortBy(state, heading, columns, rows);
    draw();
    const heads = /** @type {NodeListOf<HTMLElement>} */ (place.querySelectorAll("thead button"));
    [...heads].find((head) => head.textContent === heading)?.focus();
  };
  draw();
  return place;
}

// Numbers are first sorted from the largest, texts from A; a second time the other way round.
function sortBy(state, heading, columns, rows) {
  const value = columns.find((column) => column.heading === heading)?.value;
  const isText = rows.some((row) => typeof value?.(row) === "string" && value(row) !== "");
  Object.assign(state, { sort: heading, down: state.sort === heading ? !state.down : !isText });
}

// Rows without a value come last in both directions.
function sortedRows(rows, columns, { sort, down }) {
  const value = columns.find(({ heading }) => heading === sort)?.value;
  if (!value) return rows;
  const known = (row) => value(row) !== "";
  const before = (a, b) => {
    const [left, right] = [value(a), value(b)];
    return typeof left === "string" ? left.localeCompare(right, undefined, { numeric: true }) : left - right;
  };
  return [...rows].sort((a, b) => Number(known(b)) - Number(known(a)) || (down ? before(b, a) : before(a, b)));
}
