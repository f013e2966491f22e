// Tables: formatted cells on the page, plain numbers in the CSV file.
// A column is { heading, cell(row), field, value(row) }. The first column names the row; a column without a cell is for the CSV file only.
import { el } from "./dom.js";
import { fieldName, saveCsv } from "./export.js";
import { bandwidth, countText, milliseconds, percent, bytesText } from "./words.js";

export function textColumn(heading, value, cell = value) {
  return { heading, cell, field: fieldName(heading), value };
}

export function countColumn(heading, value) {
  return { heading, cell: (row) => countText(value(row)), field: fieldName(heading), value };
}

export function durationColumn(heading, value, cell = (row) => milliseconds(value(row))) {
  return { heading, cell, field: fieldName(heading, "_ns"), value };
}

export function sizeColumn(heading, value) {
  return { heading, cell: (row) => bytesText(value(row)), field: fieldName(heading, "_bytes"), value };
}

export function shareColumn(heading, part, whole) {
  return {
    heading,
    cell: (row) => percent(part(row), whole(row)),
    field: fieldName(heading, "_fraction"),
    value: (row) => (whole(row) ? part(row) / whole(row) : ""),
  };
}

export function bandwidthColumn(heading, bytes, ns) {
  return {
    heading,
    cell: (row) => bandwidth(bytes(row), ns(row)),
    field: fieldName(heading, "_gb_per_s"),
    value: (row) => (ns(row) ? bytes(row) / ns(row) : ""),
  };
}

export function csvColumn(field, value) {
  return { field, value };
}

export function table(caption, all, rows, most = Infinity) {
  const columns = all.filter(({ cell }) => cell);
  const line = (row) =>
    el(
      "tr",
      {},
      ...columns.map(({ cell }, place) => (place ? el("td", {}, cell(row)) : el("th", { scope: "row" }, cell(row)))),
    );
  const body = el("tbody", {}, ...rows.slice(0, most).map(line));
  const under = el("div", { class: "under" });
  if (rows.length > most) {
    const rest = el("button", {
      type: "button",
      class: "small",
      text: `Show all ${countText(rows.length)}`,
      onclick: () => {
        body.append(...rows.slice(most).map(line));
        rest.remove();
      },
    });
    under.append(rest);
  }
  under.append(
    el("button", {
      type: "button",
      class: "small",
      text: "CSV",
      "aria-label": `Save as CSV: ${caption}`,
      title: "Save this table, all of its rows, as CSV",
      onclick: () => saveCsv(caption, all, rows),
    }),
  );
  return el(
    "div",
    { class: "tabled" },
    el(
      "div",
      { class: "table", tabindex: 0, role: "region", "aria-label": caption },
      el(
        "table",
        {},
        el("caption", { class: "hidden", text: caption }),
        el("thead", {}, el("tr", {}, ...columns.map(({ heading }) => el("th", { scope: "col", text: heading })))),
        body,
      ),
    ),
    under,
  );
}
