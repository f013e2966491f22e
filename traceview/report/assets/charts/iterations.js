// The composition of each iteration as bars; the spread and all figures as tables.
import { actionButton, byId, el, softLine } from "../core/dom.js";
import { page } from "../core/page.js";
import { lookWord, partsBar, swatch } from "../core/palette.js";
import { countColumn, durationColumn, textColumn, table } from "../core/table.js";
import { countText, duration } from "../core/words.js";
import { linkTo } from "../timeline/linked.js";

const WALL = "wall"; // the only figure where there is no GPU work

function iterationLook(part) {
  return part === WALL ? "call_api" : part.replace("exposed_", "");
}

function iterationWord(part) {
  if (part === WALL) return "time on the host";
  return part.startsWith("exposed_") ? "exposed " + lookWord(iterationLook(part)) : lookWord(part);
}

export function showIterations() {
  const found = page.iterations;
  const each = byId("each");
  if ("not_measured" in found) return each.replaceChildren(el("p", found.not_measured));
  const aside = found.skipped ? `; ${found.skipped} skipped (${found.skipped_why})` : "";
  const origin = found.source === "range" ? found.range : `${found.range}, found without ranges`;
  const also = found.candidates.map(
    (other) => `${other.name} (${countText(other.count)} of ${duration(other.time_ns)})`,
  );
  const text =
    `${countText(found.count)} of ${duration(found.time_ns)}${found.unprofiled}: ${origin}; ` +
    `confidence ${found.confidence}${aside}.` +
    (also.length ? ` Also repeating: ${also.join(", ")}.` : "");
  each.replaceChildren(
    softLine(text),
    el("div.iterations", el("div", { id: "bars", class: "figure" }), spreadTable(found)),
  );
}

function spreadTable(found) {
  const rows = Object.entries(found.spreads).filter(([, spread]) => spread.p95);
  return table(
    "Iterations, spread",
    [
      textColumn("per iteration", ([name]) => name.replace(/_ns$/, "").replaceAll("_", " ")),
      durationColumn("median", ([, spread]) => spread.median),
      durationColumn("5%", ([, spread]) => spread.p5),
      durationColumn("95%", ([, spread]) => spread.p95),
    ],
    rows,
  );
}

// A bar for each iteration, or for the mean of several; one far above the counted ones is cut.
export function showIterationChart(found) {
  const parts = page.looks
    .flatMap((look) => [look, "exposed_" + look])
    .filter((part) => found.bars.some((bar) => bar.parts[part]));
  if (!parts.length) {
    parts.push(WALL);
    for (const bar of found.bars) bar.parts = { [WALL]: bar.wall };
  }
  const bars = found.bars.map((bar) => iterationBar(bar, parts));
  const most =
    Math.max(...bars.filter(({ skipped }) => !skipped).map(({ ns }) => ns), 0) || Math.max(...bars.map(({ ns }) => ns));
  const group = { title: "Iteration", words: "iterations", places: bars.map(({ place }) => place) };
  const looks = parts.map((part) => el("li", swatch(iterationLook(part)), iterationWord(part)));
  const grouped = found.bars.some(({ count }) => count > 1) ? "the average of consecutive iterations" : "an iteration";
  const each = el("details", { ontoggle: () => each.children.length < 2 && each.append(iterationTable(found)) });
  each.append(el("summary", "Every iteration"));
  byId("bars").replaceChildren(
    el("h3", "What each iteration was made of"),
    softLine(`Each bar is ${grouped}; the highest counted one is ${duration(most)}. A click shows it in the timeline.`),
    el("ul.looks", ...looks),
    el(
      "div",
      { class: "columns", onkeydown: moveFocus },
      ...bars.map(({ words, ns, pieces, place }, at) => {
        const made = partsBar(words, pieces, duration);
        made.style.height = `${Math.min(100, (100 * ns) / most)}%`;
        const options = { class: ns > most ? "cut" : null, title: words, "aria-label": words, tabindex: at ? -1 : 0 };
        return actionButton([made], options, () => linkTo({ ...group }, place));
      }),
    ),
    each,
  );
}

// Left, Right, Home and End lead from bar to bar.
function moveFocus(event) {
  const bars = [...event.currentTarget.children],
    at = bars.indexOf(document.activeElement);
  const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: bars.length - 1 }[event.key];
  if (!bars[next]) return;
  event.preventDefault();
  bars[at].tabIndex = -1;
  bars[next].tabIndex = 0;
  bars[next].focus();
}

function iterationBar(bar, parts) {
  const { slowest, count } = bar,
    wall = duration(slowest.end - slowest.start);
  const pieces = parts
    .filter((part) => bar.parts[part])
    .map((part) => ({ look: iterationLook(part), word: iterationWord(part), ns: bar.parts[part] / count }));
  const several = `average of ${count} iterations, ${bar.first} to ${bar.last}; slowest: ${slowest.name}, ${wall}`;
  const made = pieces.map(({ word, ns }) => `${word} ${duration(ns)}`).join(", ");
  return {
    skipped: bar.skipped,
    words: `${count > 1 ? several : `${bar.first}, ${wall}`}${bar.skipped ? ", skipped" : ""}: ${made}`,
    ns: pieces.reduce((sum, { ns }) => sum + ns, 0),
    pieces,
    place: { start: slowest.start, end: slowest.end, rows: ["ruler"], text: slowest.name },
  };
}

const FIRST_ITERATIONS = 50;

function iterationTable({ each, fields, causes }) {
  const placeOf = ({ name, start, end }) => ({ start, end, rows: ["ruler"], text: name });
  const group = { title: "Iteration", words: "iterations" };
  const go = (one) =>
    actionButton(one.name, { class: "small" }, () => linkTo({ ...group, places: each.map(placeOf) }, placeOf(one)));
  const made = table(
    "Every iteration",
    [
      textColumn("iteration", (one) => one.name, go),
      durationColumn("start", (one) => one.start),
      textColumn("skipped", (one) => (one.skipped ? "yes" : "")),
      ...fields.map((field, at) => durationColumn(field.replaceAll("_", " "), (one) => one.ns[at])),
      ...causes.map((cause) => durationColumn("idle " + cause.replaceAll("_", " "), (one) => one.idle[cause] ?? 0)),
      countColumn("kernels", (one) => one.kernels),
    ],
    each,
    FIRST_ITERATIONS,
  );
  const all = "count" in page.iterations ? page.iterations.count : 0;
  const cut = `The ${countText(each.length)} slowest of ${countText(all)}; --json writes all of them.`;
  if (each.length < all) made.prepend(softLine(cut));
  return made;
}
