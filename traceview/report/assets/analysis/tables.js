// The detailed tables.
import { byId, el, headedSection, prose, softLine } from "../core/dom.js";
import { page } from "../core/page.js";
import { sortableTable, unitColumn } from "../core/table.js";
import { countText } from "../core/words.js";
import { coveredView, followCover } from "./cover.js";

export function showTables() {
  const shown = page.tables.filter((declared) => declared.not_measured || declared.rows.length);
  const [long, short] = [true, false].map((wanted) =>
    shown.filter(({ rows }) => rows.length > FIRST_ROWS === wanted).map(declaredSection),
  );
  const flow = el("div.flow");
  followCover(() => flow.replaceChildren(...idleSections(), ...short));
  byId("tables-inner").replaceChildren(flow, ...long);
}

// The idle time of each device by cause, and what the host did in it, as the bars cover it.
const idleSections = () => page.devices.flatMap((device) => coveredView(device).tables.map(declaredSection));

const FIRST_ROWS = 24;

// A table as its measure declares it: titles, units and rows come from Python.
function declaredSection(declared) {
  if (declared.not_measured) return headedSection({}, declared.title, null, el("p", declared.not_measured));
  const { title, note, columns, rows } = declared;
  const cut = `The first ${countText(rows.length)} of ${countText(declared.row_count)} rows; --json writes all of them.`;
  return headedSection(
    {},
    title,
    note,
    sortableTable(
      title,
      columns.map((column, place) => unitColumn(column.title, column.unit, (row) => row[place])),
      rows,
      FIRST_ROWS,
    ),
    declared.row_count > rows.length ? softLine(cut) : null,
  );
}

export function showNotes() {
  byId("lacks").replaceChildren(
    page.notes.length ? el("ul.notes", ...page.notes.map(noteItem)) : el("p", "No gaps in the data."),
  );
  byId("foot").textContent =
    "Times count from the first event of the capture. In the bars each nanosecond counts once, in this order: compute, communication, copies, memset. In the tables, copies and communication are compared with compute only.";
}

function noteItem({ text, affects }) {
  return el("li", ...prose(text), affects.length ? el("span.soft", ` Affects: ${affects.join(", ")}.`) : null);
}
