// Measures between two moments that the user sets.
import { el } from "../core/dom.js";
import { page } from "../core/page.js";
import { EXACT, countText, duration, momentText, percent } from "../core/words.js";
import { measureRange } from "./measured.js";
import { showHint, showPanel } from "./panel.js";
import { pointer, measure, selected, view } from "./state.js";
import { schedule } from "./view.js";

// The first press sets one end at the pointer, the second the other. Without a pointer over the timeline, this measures
// the selection, the highlight or the visible range.
export function measureHere() {
  if (measure.done) clearMeasure();
  if (measure.moving) {
    measure.points[1] = Math.round(pointer.x ?? measure.points[1] ?? view.to);
    return finishMeasure();
  }
  if (pointer.x === null) {
    const { hit } = selected,
      { lit } = view;
    measure.points = hit
      ? [hit.marks.start[hit.i], hit.marks.end[hit.i]]
      : lit
        ? [lit.start, lit.end]
        : [view.from, view.to];
    return finishMeasure();
  }
  Object.assign(measure, { points: [Math.round(pointer.x)], moving: true });
  showPanel(
    el("p", {}, `Measuring from ${momentText(measure.points[0])}: press m at the other end, or Esc to cancel.`),
  );
  schedule();
}

export function followMeasure(at) {
  if (!measure.moving) return;
  measure.points[1] = Math.round(at);
  schedule();
}

async function finishMeasure() {
  const [from, to] = measure.points
    .map((at) => Math.min(Math.max(Math.round(at), 0), page.timeline.span[1]))
    .sort((a, b) => a - b);
  Object.assign(measure, { points: [from, to], moving: false, done: true });
  schedule();
  showMeasured(await measureRange(from, to));
}

export function clearMeasure() {
  if (!measure.points.length) return;
  Object.assign(measure, { points: [], moving: false, done: false });
  if (!selected.hit) showHint();
  schedule();
}

function showMeasured({ from, to, exact, bin, devices }) {
  const length = to - from,
    share = (ns) => `${duration(ns)}, ${percent(ns, length)}`;
  const how = exact
    ? "exact to the nanosecond"
    : `rounded to bins of ${duration(bin)}; traceview serve measures to the nanosecond`;
  const line = (device) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", text: device.id }),
      ...[
        share(device.compute),
        share(device.communication),
        share(device.copies),
        device.copies ? share(device.hidden).replace(/, .*/, `, ${percent(device.hidden, device.copies)}`) : "-",
        share(device.idle),
        countText(device.kernels),
        countText(device.copy_count),
      ].map((text) => el("td", { text })),
      el("td", { class: "text", text: causesText(device) }),
    );
  const heads = [
    "GPU",
    "compute",
    "communication",
    "copies",
    "copies hidden",
    "idle",
    "kernels and graphs",
    "copies started",
    "gaps started, by cause",
  ];
  const title = `Measured: ${exact ? EXACT.format(length / 1e6) + " ms" : duration(length)} from ${momentText(from)} to ${momentText(to)}`;
  showPanel(
    el("div", { class: "panel-head" }, el("h3", { text: title }), el("p", { class: "soft", text: how })),
    el(
      "table",
      { id: "measured", "data-exact": String(exact), "data-from": from, "data-to": to },
      el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col", text })))),
      el("tbody", {}, ...devices.map(line)),
    ),
  );
  measure.result = { from, to, exact, devices };
}

function causesText({ causes }) {
  return (
    Object.entries(causes)
      .sort((a, b) => b[1] - a[1])
      .map(([cause, ns]) => `${cause.replace("_", " ")} ${duration(ns)}`)
      .join(" · ") || "none"
  );
}
