// A stretch of the iterations, chosen by a drag on a ruler: what each capture does in it, beside the first capture.
import { sumsTable } from "../core/areatable.js";
import { byId, el, softLine } from "../core/dom.js";
import { LOOK_WORDS } from "../core/palette.js";
import { duration, timeRange } from "../core/words.js";
import { captures, iterationStart, view } from "./state.js";

const TABLES = [
  { name: "class", head: "GPU by class", counted: false },
  { name: "gpu", head: "kernels and copies", counted: true },
  { name: "range", head: "NVTX ranges", counted: true },
  { name: "call", head: "CUDA calls", counted: true },
];

export function showArea() {
  const place = byId("area");
  if (!view.area)
    return place.replaceChildren(softLine("Drag on a ruler, or press m, to compare a stretch of the captures."));
  const [from, to] = view.area;
  const [base, ...others] = captures.map((capture) => sumsInside(capture, from, to));
  const where = `${duration(to - from)}, ${timeRange(from, to)} after the start of the iteration`;
  place.replaceChildren(
    ...others.flatMap((sums, at) => [
      el("h3", `A: ${captures[0].file}, B: ${captures[at + 1].file}: ${where}`),
      el(
        "div.area",
        ...TABLES.map(({ name, head, counted }) =>
          sumsTable(head, base[name], sums[name], { name, length: to - from, counted }),
        ).filter(Boolean),
      ),
    ]),
    captures.some(({ leftOut }) => leftOut) ? softLine("Events that are not drawn are not counted.") : "",
  );
}

/**
 * The time and events of each name inside a stretch after the start of the iteration; of a class, time counts once.
 * @param {import("../types").Capture} capture
 */
function sumsInside(capture, from, to) {
  const zero = iterationStart(capture);
  /** @type {Record<string, import("../types").Sums>} */
  const sums = Object.fromEntries(TABLES.map(({ name }) => [name, new Map()]));
  const reached = new Map();
  for (const [, start, length, look, name] of capture.events) {
    const [begin, end] = [Math.max(start - zero, from), Math.min(start + length - zero, to)];
    if (begin > to) break;
    if (end < begin) continue;
    const kind = capture.looks[look];
    const table = kind === "range" ? "range" : kind.startsWith("call") ? "call" : "gpu";
    add(sums[table], capture.names[name], end - begin, start - zero >= from ? 1 : 0);
    if (table !== "gpu") continue;
    const last = reached.get(kind) ?? from;
    add(sums.class, LOOK_WORDS[kind] ?? kind, Math.max(0, end - Math.max(begin, last)), 0);
    reached.set(kind, Math.max(last, end));
  }
  return sums;
}

function add(sums, name, time, started) {
  const sum = sums.get(name) ?? { time: 0, started: 0 };
  sums.set(name, { time: sum.time + time, started: sum.started + started });
}
