// The tables of an area: figures of the GPUs, and of each row, name and stack; of two areas, both and the difference.
import { loadedFigures } from "../charts/figures.js";
import { sumsTable, treeTable } from "../core/areatable.js";
import { el, softLine } from "../core/dom.js";
import { page } from "../core/page.js";
import { table, textColumn } from "../core/table.js";
import { countText, duration, momentText, percent } from "../core/words.js";
import { allRows, rowName } from "./rows.js";

const HEADS = {
  row: "rows",
  kernel: "kernels",
  copy: "copies and memsets",
  idle: "gaps started, by cause",
  sample: "lines (stack samples)",
  projected: "NVTX ranges on the GPU",
  range: "NVTX ranges",
  call: "CUDA calls",
};

/** @param {(id: string) => void} openRow shows the area of one row */
export function areaTables(result, kept, openRow) {
  const inner = [devicesTable(result, kept)];
  for (const name of Object.keys(HEADS)) inner.push(namesTable(name, result, kept, openRow));
  if (!kept) inner.push(...stackTrees(result.names?.tables.stack));
  const note = result.names
    ? namesBasis(result)
    : "Names: the area is narrower than the sums of this page. Select a longer one, or make a larger page with --detail.";
  return el("div.area", ...inner, note ? softLine(note) : null);
}

// Names are summed in wider bins than the figures of the GPUs.
function namesBasis({ names }) {
  return names.exact
    ? ""
    : `Times by name cover ${momentText(names.from)} to ${momentText(names.to)}, in bins of ${duration(names.bin)}.`;
}

// The GPUs whose figures the area has: all, or those of whose work or idle time it has the row.
function shownDevices({ devices, rows }) {
  if (!rows) return devices;
  const chosen = allRows().filter(({ id, kind }) => rows.includes(id) && ["overlap", "idle"].includes(kind));
  return devices.filter(({ id }) => chosen.some(({ group }) => group.label === id));
}

const DEVICE_FIGURES = [
  ["compute", "compute"],
  ["communication", "communication"],
  ["copies", "copies"],
  ["hidden", "copies hidden"],
  ["idle", "idle"],
  ["kernels", "kernels and graphs"],
  ["copy_count", "copies started"],
];

function figureText(name, device, length) {
  const ns = device[name];
  if (name === "kernels" || name === "copy_count") return countText(ns);
  return `${duration(ns)}, ${percent(ns, name === "hidden" ? device.copies : length)}`;
}

function devicesTable(result, kept) {
  const devices = shownDevices(result);
  if (!devices.length) return null;
  const areas = kept ? { A: kept, B: result } : { "": result };
  const rows = DEVICE_FIGURES.filter(([name]) =>
    Object.values(areas).some((one) => one.devices.some((device) => device[name])),
  );
  const columns = devices.flatMap(({ id }) =>
    Object.entries(areas).map(([letter, area]) => {
      const device = area.devices.find((one) => one.id === id);
      return textColumn(`${id} ${letter}`, ([name]) => figureText(name, device, area.to - area.from));
    }),
  );
  const options = {
    id: "measured",
    "data-exact": String(result.exact),
    "data-from": result.from,
    "data-to": result.to,
  };
  return el("div", options, table("GPUs", [textColumn("time, share", ([, word]) => word), ...columns], rows));
}

// The sums of a table by name as text.
function sumsOf(name, result) {
  const sums = [...(result.names?.tables[name] ?? [])];
  if (name === "row") return new Map(sums.map(([id, sum]) => [rowName(id), sum]));
  if (name !== "idle") return new Map(sums.map(([at, sum]) => [page.names[at] ?? "", sum]));
  const causes = new Map();
  for (const device of shownDevices(result))
    for (const [cause, ns] of Object.entries(device.causes)) {
      const word = page.cause_words[cause];
      causes.set(word, { time: (causes.get(word)?.time ?? 0) + ns });
    }
  return causes;
}

function namesTable(name, result, kept, openRow) {
  const length = name === "idle" ? result.to - result.from : (result.names?.to ?? 0) - (result.names?.from ?? 0);
  const open = (text) => openRow([...result.names.tables.row.keys()].find((id) => rowName(id) === text));
  return sumsTable(HEADS[name], kept ? sumsOf(name, kept) : null, sumsOf(name, result), {
    name,
    length,
    counted: name !== "idle" && name !== "sample",
    open: name === "row" && !kept ? open : undefined,
  });
}

// The stacks as two trees: callers with what they call, and functions with their callers.
function stackTrees(sums) {
  const stacks = loadedFigures()?.samples;
  if (!sums || !stacks) return [];
  const part = (name) => ({ name, time: 0, own: 0, inner: [], known: new Map() });
  const [down, up] = [part(""), part("")];
  const add = (at, frames, time) => {
    for (const frame of frames) {
      if (!at.known.has(frame)) at.known.set(frame, at.inner[at.inner.push(part(stacks.frames[frame])) - 1]);
      at = at.known.get(frame);
      at.time += time;
    }
    at.own += time;
  };
  for (const [number, { time }] of sums) {
    const frames = [];
    for (let at = number; at; at = stacks.caller[at - 1]) frames.push(stacks.frame[at - 1]);
    add(up, frames, time);
    add(down, frames.reverse(), time);
  }
  const all = down.inner.reduce((sum, { time }) => sum + time, 0);
  const figure = (heading, value) => ({
    heading,
    value,
    text: (one) => `${duration(value(one))}, ${percent(value(one), all)}`,
  });
  const total = figure("total", ({ time }) => time);
  return [
    treeTable("stacks, top-down", [total, figure("own", ({ own }) => own)], down.inner),
    treeTable("stacks, bottom-up", [total], up.inner),
  ];
}
