// The tables of an area: figures of the GPUs, and the names with the most time; of two areas, both and the difference.
import { el } from "../core/dom.js";
import { figureLine, figureTable, sumsTable } from "../core/areatable.js";
import { page } from "../core/page.js";
import { countText, duration, momentText, percent } from "../core/words.js";
import { allRows } from "./rows.js";

const HEADS = {
  kernel: "kernels",
  copy: "copies and memsets",
  idle: "gaps started, by cause",
  sample: "lines (stack samples)",
  projected: "NVTX ranges on the GPU",
  range: "NVTX ranges",
  call: "CUDA calls",
};

export function areaTables(result, kept) {
  const inner = [devicesTable(result, kept)];
  for (const table of Object.keys(HEADS)) inner.push(namesTable(table, result, kept));
  const note = result.names
    ? namesBasis(result)
    : "Names: the area is narrower than the sums of this page. Zoom in, or use traceview analyze --serve.";
  return el("div", { class: "area" }, ...inner, note ? el("p", { class: "soft", text: note }) : null);
}

// Names are summed in wider bins than the figures of the GPUs.
function namesBasis({ names }) {
  return names.exact
    ? ""
    : `Times by name cover ${momentText(names.from)} to ${momentText(names.to)}, in bins of ${duration(names.bin)}.`;
}

function shownDevices({ devices, rows }) {
  if (!rows) return devices;
  const groups = new Set(
    allRows()
      .filter((row) => rows.includes(row.id))
      .map((row) => row.group?.label),
  );
  return devices.filter((device) => groups.has(device.id));
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

function devicesTable(result, kept) {
  const devices = shownDevices(result);
  if (!devices.length) return null;
  const text = (name, device, length) =>
    name === "kernels" || name === "copy_count"
      ? countText(device[name])
      : name === "hidden"
        ? device.copies
          ? `${duration(device.hidden)}, ${percent(device.hidden, device.copies)}`
          : "-"
        : `${duration(device[name])}, ${percent(device[name], length)}`;
  const lines = DEVICE_FIGURES.flatMap(([name, word]) => {
    if (![...devices, ...(kept?.devices ?? [])].some((device) => device[name])) return [];
    return devices.map((device) => {
      const before = kept?.devices.find((one) => one.id === device.id);
      const cells = [text(name, device, result.to - result.from)];
      if (before) cells.unshift(text(name, before, kept.to - kept.from));
      return figureLine(devices.length > 1 ? `${device.id}: ${word}` : word, cells);
    });
  });
  const head = [devices.length > 1 ? "GPUs" : devices[0].id, ...(kept ? ["A", "B"] : ["time, share"])];
  return figureTable(head, lines, {
    id: "measured",
    "data-exact": String(result.exact),
    "data-from": result.from,
    "data-to": result.to,
  });
}

// The sums of a table by name as text.
function sumsOf(name, result) {
  if (name !== "idle")
    return new Map([...(result.names?.tables[name] ?? [])].map(([at, sum]) => [page.names[at] ?? "", sum]));
  const causes = new Map();
  for (const device of shownDevices(result))
    for (const [cause, ns] of Object.entries(device.causes)) {
      const word = page.cause_words[cause];
      causes.set(word, { time: (causes.get(word)?.time ?? 0) + ns });
    }
  return causes;
}

function namesTable(name, result, kept) {
  const length = name === "idle" ? result.to - result.from : (result.names?.to ?? 0) - (result.names?.from ?? 0);
  return sumsTable(HEADS[name], kept ? sumsOf(name, kept) : null, sumsOf(name, result), {
    name,
    length,
    counted: name !== "idle" && name !== "sample",
  });
}
