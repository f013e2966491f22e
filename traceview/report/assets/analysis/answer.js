// The first screen: the answer, where the time went, and the three findings with the highest cost.
import { actionButton, byId, el, prose, softLine } from "../core/dom.js";
import { page } from "../core/page.js";
import { partItem, partsBar } from "../core/palette.js";
import { countText, duration, gainShare, percent, timeRange } from "../core/words.js";
import { coveredView, followCover, showCovers } from "./cover.js";
import { showFamily } from "./kernels.js";
import { showPlace } from "./places.js";

const CARDS = 3;
const LITTLE = 0.01; // share of the time; smaller parts are among all figures
const COMPUTE_BOUND = 0.4; // share of the time that computes, from which its part shows the families of kernels
const LITTLE_FAMILY = 0.06; // a smaller one has no room for its name
const MAX_BARS = 4;
const ANSWERED = { compute: "compute", profiler: "the profiler" }; // parts by the answer's words (rules/answer.py)

export function showHead() {
  byId("title").textContent = byId("title").title = page.file;
  const { devices, profiler, nsys } = page;
  const kernels = devices.reduce((sum, device) => sum + device.kernel_count, 0);
  const names = [...new Set(devices.map(({ name }) => name))].join(", ");
  const first = [
    profiler !== "nsys" ? profiler : nsys ? `nsys ${nsys}` : "nsys, unknown version",
    names && devices.length > 1 ? `${devices.length} × ${names}` : names,
    page.narrowed ? "limited to a time window" : null,
  ].filter(Boolean);
  byId("facts").textContent = first.join(" · ");
  const rest = [page.program, `${countText(kernels)} kernels`, `${countText(page.timeline.events)} events`];
  byId("facts").title = [...first, ...rest].join(" · ");
}

export function showAnswer() {
  showCovers();
  for (const show of [showSentence, showDevices, showCards]) followCover(show);
}

function showSentence() {
  // Where no gain is known, the answer ends with the first finding, which is the first card.
  const at = page.answer.indexOf(` ${page.findings[0]?.title}`);
  byId("answer-title").replaceChildren(...prose(at < 0 ? page.answer : page.answer.slice(0, at)));
  byId("missing").replaceChildren(...page.missing.flatMap((text) => prose(text)));
}

// The bars with what they do not say; what they rest on, and all their figures, open below.
function showDevices() {
  const { devices } = page;
  byId("devices").replaceChildren(
    ...(devices.length === 1
      ? [deviceBar(devices[0]), partsList(coveredView(devices[0]))]
      : [...devices.slice(0, MAX_BARS).map(deviceLine), sharedParts(devices)]),
  );
  byId("figures").replaceChildren(
    el("summary", "More figures"),
    ...page.answer_basis.map((text) => softLine(text)),
    ...devices.flatMap((device, at) => deviceFigures(device, at < MAX_BARS ? null : deviceBar(device))),
  );
}

// A bar between the name of a device and the share that computes.
function deviceLine(device) {
  const view = coveredView(device);
  const compute = view.parts.find(({ look }) => look === "compute")?.ns ?? 0;
  const words = view.window_ns ? `${percent(compute, view.window_ns)} compute` : "no work";
  return el("div.device-line", el("b", device.id), deviceBar(device), el("span", words));
}

// What the bars of several devices have in common: their colours.
function sharedParts(devices) {
  const views = devices.map(coveredView);
  const large = views.flatMap(({ parts, window_ns: whole }) => parts.filter(({ ns }) => ns >= LITTLE * whole));
  const words = new Map(large.map(({ look, word }) => [look, word]));
  return el("ul.parts", ...[...words].map(([look, word]) => partItem(look, word)));
}

function deviceBar(device) {
  const view = coveredView(device),
    { parts, window_ns: whole } = view;
  const share = (ns) => percent(ns, whole);
  const bar = partsBar(device.id, parts, share, (ns) => `${duration(ns)}, ${share(ns)}`);
  if (!familiesOf(view).length) return bar;
  const pieces = familiesOf(view).map(({ family, word, ns }) => {
    const title = `${word}: ${share(ns)}; click to see these kernels`;
    const style = { flex: `${ns} 0 0`, backgroundColor: "var(--compute)" };
    return el("span", { class: "of", title, style, text: word, onclick: () => showFamily(device.id, family) });
  });
  bar.children[0].replaceWith(...pieces);
  return bar;
}

// Where much of the time computes: its parts in proportion to the kernel time of each family, the small ones as one.
function familiesOf({ parts, families, window_ns: whole }) {
  const [{ look, ns } = { look: "", ns: 0 }] = parts;
  if (look !== "compute" || ns < COMPUTE_BOUND * whole) return [];
  const total = families.reduce((sum, one) => sum + one.ns, 0) || 1;
  const large = families
    .map((one) => ({ ...one, ns: (one.ns / total) * ns }))
    .filter((one) => one.ns >= LITTLE_FAMILY * whole);
  const rest = ns - large.reduce((sum, one) => sum + one.ns, 0);
  return rest > LITTLE * whole ? [...large, { family: "", word: "other kernels", ns: rest }] : large;
}

// What the bar covers, the bar if it belongs here, and all parts with their times.
function deviceFigures(device, bar) {
  const view = coveredView(device),
    { parts, window_ns: whole } = view;
  return [
    el(
      "div.device-head",
      el("b", device.id),
      el("span.soft", device.name),
      el("span", whole ? view.time_words : `no work ${view.covers}`),
    ),
    ...(bar ? [bar] : []),
    el("ul.parts", ...parts.map((part) => partOf(part, percent(part.ns, whole), duration(part.ns)))),
  ];
}

const partOf = ({ look, word }, figure, more = "") =>
  partItem(look, word, figure, { title: page.cause_words[look.replace("idle_", "")], more });

// The parts of a single bar. A share that the answer states is not stated again.
function partsList({ parts, window_ns: whole }) {
  const stated = (look) => look in ANSWERED && new RegExp(`% (is )?${ANSWERED[look]}\\b`).test(page.answer);
  const large = parts.filter(({ ns }) => ns >= LITTLE * whole);
  return el("ul.parts", ...large.map((part) => partOf(part, stated(part.look) ? "" : percent(part.ns, whole))));
}

function restButton(text, action) {
  return actionButton(text, { class: "rest", "aria-expanded": "false" }, action);
}

function showCards() {
  const shown = page.findings.filter(({ folded }) => !folded);
  const cards = shown.slice(0, CARDS).map(findingCard);
  byId("costliest").hidden = !cards.length; // the answer says that there is none
  byId("cards").replaceChildren(...cards);
}

// The gain, the cause and the place; then the remedy and the range of the gain, below which the rest opens.
function findingCard(finding, at, all) {
  const share = el("b", { class: "tone", title: gainTitle(finding), text: gainShare(finding) });
  const range = rangeAfter(finding.gain);
  const several = all.some(({ list }) => list !== all[0].list),
    begins = several && finding.list !== all[at - 1]?.list; // a list of the run, or of an iteration
  return el(
    "li",
    { class: "card " + finding.severity },
    begins ? el("span.soft", finding.list || "For an iteration") : null,
    findingTitle(finding, shortTitle(finding), share, " "),
    el(
      "details",
      el(
        "summary",
        ...prose(finding.remedy || firstSentence(finding.advice)),
        range && !page.answer.includes(range) ? el("span.soft", { title: gainTitle(finding) }, ` ${range}`) : null,
      ),
      shortTitle(finding) === finding.title ? null : el("p", ...prose(finding.title)),
      el("p", ...gainWords(finding), ...costWords(finding)),
      el("p", ...prose(finding.advice)),
      codeSnippet(finding.code, Infinity),
    ),
  );
}

// What remains after a predicted change, from the shortest to the longest.
function rangeAfter({ source, of_ns: of, low_ns: low, high_ns: high }) {
  return source === "predicted" ? timeRange(of - high, of - low) : "";
}

function gainTitle({ gain }) {
  const base = `of ${duration(gain.of_ns)}`;
  if (gain.source === "predicted") return `${base}, from a replay of the capture (traceview whatif: ${gain.change})`;
  return gain.source === "bound" ? `at most, ${base}: ${gain.reason}` : `the gain is unknown: ${gain.reason}`;
}

function firstSentence(text) {
  return text.split(/(?<=[.:)]) (?=[A-Z(])/)[0];
}

// A title without what is in parentheses or after a semicolon, which opens below the card. Names keep theirs.
function shortTitle({ title }) {
  return title.replace(/ \([^()`<]*\)(?=[ ,;.]|: |$)/g, "").split(/; (?=[^`]*(?:`[^`]*`[^`]*)*$)/)[0];
}

// A click on the title moves the timeline to the worst place of the finding.
export function findingTitle(finding, text, ...before) {
  const [worst] = finding.evidence;
  const content = [...before, ...prose(text)];
  if (!worst) return el("span.goto", ...content);
  const title = `${finding.title.replaceAll("`", "")}: show the worst place in the timeline`;
  return actionButton(content, { class: "goto", title }, () => showPlace(worst));
}

export function findingCost(finding) {
  const gain = el("b", { title: gainTitle(finding), text: gainShare(finding) });
  return el("p.price", el("span.tone", finding.severity), " · ", gain, " · ", ...costWords(finding));
}

function costWords(finding) {
  const each = finding.per_iteration_ns;
  return [
    `it cost ${duration(finding.cost_ns)}${each === null ? "" : `, ${duration(each)} per iteration`}`,
    ...(finding.device && page.devices.length > 1 ? [" · ", el("span.whole", finding.device)] : []),
    finding.unsure_because ? el("span.soft", ` · Unsure: ${finding.unsure_because}`) : "",
  ];
}

// What the remedy would give.
export function findingGain(finding) {
  const words = gainWords(finding);
  return words.length ? el("p", ...words) : null;
}

function gainWords(finding) {
  const { gain } = finding;
  if (gain.source !== "predicted") return [];
  const words = `${duration(gain.of_ns)} → ${duration(gain.of_ns - gain.ns)} (${rangeAfter(gain)})`;
  return [el("span", { class: "prediction", title: gainTitle(finding) }, el("b", "Predicted: "), words), " "];
}

// Shows the first lines of code; a button shows the rest.
export function codeSnippet(text, lines) {
  if (!text) return null;
  const all = text.split("\n");
  while (lines < all.length && all[lines - 1].startsWith("#")) lines++;
  const shown = el("pre", { tabindex: 0, text: all.slice(0, lines).join("\n") });
  if (all.length <= lines) return shown;
  const more = restButton(`+ ${all.length - lines} line${all.length - lines > 1 ? "s" : ""}`, () => {
    shown.textContent = text;
    more.remove();
    shown.focus();
  });
  return el("div.snippet", shown, more);
}
