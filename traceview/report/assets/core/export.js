// Tables as CSV files, which the browser saves without a network.
import { el } from "./dom.js";
import { page } from "./page.js";

// A spreadsheet may run a cell that begins with = + - @ or their full-width forms, white space in front included:
// such a text gets an apostrophe in front. So does such a sign after a semicolon, a tab or a line end, where some
// spreadsheets begin a new cell. Numbers stay numbers.
const FORMULA = /^(?:['\t\r\n]|[\s\u0000-\u001f\u200b\ufeff]*[=+\-@\uff0b\uff0d\uff1d\uff20])/;
const NEXT_CELL = /([;\t\r\n][\s\u0000-\u001f\u200b\ufeff]*'*)([=+\-@\uff0b\uff0d\uff1d\uff20])/g;

function csvCell(value) {
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  const text = (FORMULA.test(value) ? "'" : "") + String(value).replaceAll(NEXT_CELL, "$1'$2");
  return /[",;\t\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csvText(columns, rows) {
  const lines = [columns.map(({ field }) => field), ...rows.map((row) => columns.map(({ value }) => value(row)))];
  return lines.map((cells) => cells.map(csvCell).join(",") + "\r\n").join("");
}

export function saveCsv(caption, columns, rows) {
  // The byte order mark tells a spreadsheet that names are UTF-8.
  save(fileName(caption, "csv"), new Blob(["\ufeff", csvText(columns, rows)], { type: "text/csv" }));
}

export function fieldName(heading, suffix = "") {
  return (
    heading
      .toLowerCase()
      .replace(/[^a-z0-9]+/g, "_")
      .replace(/^_|_$/g, "") + suffix
  );
}

// For example dual.idle_gaps_by_length.csv: capture and content, in characters that every file system accepts.
function fileName(what, ending) {
  const stem = page.file
    .replace(/\.[A-Za-z0-9]+$/, "")
    .replace(/[^A-Za-z0-9_-]+/g, "_")
    .replace(/^_+|_+$/g, "")
    .slice(0, 60);
  return `${stem || "capture"}.${fieldName(what).slice(0, 60)}.${ending}`;
}

function save(name, blob) {
  const href = URL.createObjectURL(blob);
  const link = el("a", { href, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}
