// The tables of kernels: grouped, sorted and filtered by the reader; times of single kernels lead to the timeline.
import { chartFigures } from "../charts/figures.js";
import { actionButton, byId, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { sortableTable, tableRow, textColumn, unitColumn, withUnits } from "../core/table.js";
import { countText, duration, middle, percent } from "../core/words.js";
import { linkTo } from "../timeline/linked.js";
import { launchesOf } from "../timeline/search.js";
import { afterCover, coveredPart, coverWords } from "./cover.js";

const FIRST_KERNELS = 20;
const NAME_LETTERS = 36;
const INSTANCES = ["median", "longest", "first"]; // times of single launches
const LONGEST = 1;
const SHARE = 0;

// What the reader chose for the table of each device; it stays when the tables show another part of the window.
const states = new Map();

export async function showKernels() {
  const { devices } = await chartFigures();
  for (const { kernels } of devices)
    for (const { groupings } of kernels) for (const { by, rows } of groupings) for (const row of rows) row.by = by;
  const draw = () => {
    const all = devices.map(({ kernels }) => coveredPart(kernels)).filter(({ groupings }) => groupings.length);
    const lacks = devices.length
      ? `The capture has no single kernels ${coverWords()}`
      : "This page has no kernel tables";
    const none = el("p", `${lacks.trim()}${devices.length ? "" : " (see Notes)"}.`);
    byId("kernel-tables").replaceChildren(...(all.length ? all.map(kernelTable) : [none]));
  };
  draw();
  afterCover.push(draw);
}

// Shows the kernels of a family, or all of them.
export function showFamily(device, family) {
  states.set(device, { by: "shape", sort: "total", down: true, filter: family });
  for (const draw of afterCover) draw();
  byId("kernels").scrollIntoView({ block: "nearest" });
}

// The table of one device with its controls.
function kernelTable(kernels) {
  const name = kernels.device;
  const state = states.get(name) ?? { by: "shape", sort: "total", down: true, filter: "" };
  states.set(name, state);
  const place = el("div");
  const status = el("span", { class: "soft", role: "status" });
  const grouping = () => kernels.groupings.find(({ by }) => by === state.by) ?? kernels.groupings[0];
  const draw = () => {
    const chosen = grouping();
    const columns = kernelColumns(kernels, chosen);
    const rows = filteredRows(kernels, chosen, state.filter);
    const shares = rows.reduce((sum, { values }) => sum + values[SHARE], 0);
    const share = state.filter ? `, ${percent(shares, 1)} of the kernel time` : "";
    status.textContent = `${countText(rows.length)} of ${countText(chosen.rows.length)} rows${share}`;
    place.replaceChildren(
      sortableTable(`Kernels on ${name}`, columns, rows, FIRST_KERNELS, { state, open: openLongest }),
    );
  };
  draw();
  return el(
    "div.kernels",
    el(
      "div.bar",
      page.devices.length > 1 ? el("b", name) : null,
      groupMenu(kernels, grouping().by, (by) => {
        Object.assign(state, { by, sort: "total", down: true });
        draw();
      }),
      filterField(name, state.filter, (text) => {
        state.filter = text;
        draw();
      }),
      status,
      el("span.spacer"),
      el("span.soft", kernels.covers),
    ),
    place,
  );
}

function groupMenu({ device, groupings }, chosen, choose) {
  const options = groupings.map(({ by }) =>
    el("option", { value: by, text: groupingWord({ by }), selected: by === chosen }),
  );
  const menu = el("select", { "aria-label": `Group the kernels on ${device} by`, onchange: () => choose(menu.value) });
  menu.append(...options);
  return el("label", "By ", menu);
}

function filterField(device, text, choose) {
  const field = el("input", {
    type: "search",
    value: text,
    placeholder: "Filter kernels",
    "aria-label": `Show only kernels on ${device} whose name, family or place contains`,
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => choose(field.value.trim().toLowerCase()),
  });
  return field;
}

function groupingWord({ by }) {
  return by === "shape" ? "launch shape" : by.replace("_", " ");
}

function kernelColumns(kernels, grouping) {
  const shown = grouping.by === "shape" ? kernels.columns : kernels.columns.slice(0, kernels.figures);
  const figures = shown.map((column, at) => {
    const made = unitColumn(column.title, column.unit, (row) => row.values[at] ?? null);
    return column.name === "mean_ns" ? { ...made, scales: undefined } : made; // short and long kernels differ too much
  });
  return [
    textColumn(
      grouping.by === "shape" ? "kernel" : groupingWord(grouping),
      (row) => row.name || `no ${groupingWord(grouping)}`,
      (row) => nameCell(kernels, grouping, row),
    ),
    ...figures.slice(0, kernels.figures),
    ...INSTANCES.map((heading, at) => instanceColumn(heading, at)),
    ...figures.slice(kernels.figures),
  ];
}

// Only the longest is a button, for the keyboard: n and N lead to all other launches.
function instanceColumn(heading, at) {
  const text = (row) => (row.instances.length ? duration(row.instances[at][1]) : "");
  const title = `Show the ${heading} in the timeline`;
  const button = (row) => {
    const options = { class: "instance", "aria-label": `${title}: ${row.name}, ${text(row)}`, title };
    return row.instances.length ? actionButton(text(row), options, () => openLongest(row)) : "";
  };
  const value = (row) => row.instances[at]?.[1] ?? "";
  return { heading, field: heading + "_ns", value, cell: at === LONGEST ? button : text };
}

async function openLongest(row) {
  if (!row.instances.length) return;
  const [start, length, stream] = row.instances[LONGEST];
  const title = `${row.name}, ${duration(length)}`,
    place = { start, end: start + length, rows: [`s:${stream}`] };
  return linkTo({ title, words: "launches", ...(await launchesOf(row, row.by ?? "shape", place)) }, place);
}

// A name, or for a group a button that shows its members.
function nameCell(kernels, grouping, row) {
  const name = row.name || `no ${groupingWord(grouping)}`;
  const members = grouping.by === "shape" ? [] : membersOf(kernels, grouping.by, row);
  const text = middle(name, NAME_LETTERS);
  if (!members.length) return el("span", { class: "mono", title: row.full || name, text });
  const options = { class: "members mono", "aria-expanded": "false", title: name };
  return actionButton(text, options, ({ currentTarget }) => toggleMembers(kernels, members, currentTarget));
}

function membersOf({ columns, groupings, places }, by, group) {
  if (by !== "kernel" && by !== "family")
    return mergedByName(
      columns,
      places.filter(({ place }) => (place[by] ?? "") === group.name),
    );
  const at = columns.findIndex(({ name }) => name === by);
  return groupings[0].rows.filter((row) => (by === "kernel" ? row.name : row.values[at]) === group.name);
}

// Rows of the same kernel at several places become one, the costliest first.
function mergedByName(columns, rows) {
  const [total, count, mean] = ["total_ns", "count", "mean_ns"].map((key) =>
    columns.findIndex(({ name }) => name === key),
  );
  const merged = new Map();
  for (const row of rows) {
    const before = merged.get(row.name)?.values;
    const values = row.values.map((value, at) => value + (before?.[at] ?? 0));
    values[mean] = Math.floor(values[total] / values[count]);
    merged.set(row.name, { ...row, values });
  }
  return [...merged.values()].sort((a, b) => b.values[total] - a.values[total]);
}

function toggleMembers(kernels, members, button) {
  const unfold = button.getAttribute("aria-expanded") === "false";
  const line = button.closest("tr");
  button.setAttribute("aria-expanded", String(unfold));
  if (!unfold) {
    while (line.nextSibling?.classList.contains("member")) line.nextSibling.remove();
    return;
  }
  const columns = withUnits(kernelColumns(kernels, { by: "shape" }).slice(0, line.children.length), members);
  line.after(...members.map((row) => tableRow(columns, row, { name: "member", open: openLongest })));
}

function searchText(kernels, by, row) {
  row.text ??= [row, ...(by === "shape" ? [] : membersOf(kernels, by, row))]
    .flatMap(({ name, full, values }) => [name, full, ...values.filter((value) => typeof value === "string")])
    .join("\n")
    .toLowerCase();
  return row.text;
}

function filteredRows(kernels, { by, rows }, filter) {
  return filter ? rows.filter((row) => searchText(kernels, by, row).includes(filter)) : rows;
}
