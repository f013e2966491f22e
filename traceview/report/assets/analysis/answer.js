// The first screen: the answer, where the time went, and the three findings with the highest cost.
import { actionButton, byId, el, prose, softLine } from "../core/dom.js";
import { page } from "../core/page.js";
import { partItem, partsBar } from "../core/palette.js";
import { countText, duration, gainShare, percent, timeRange } from "../core/words.js";
import { coveredView, followCover, showCovers } from "./cover.js";
import { showFamily } from "./kernels.js";
import { showPlace } from "./places.js";

const CARDS = 3;
const LITTLE = 0.01; // share of the time; smaller parts are behind a button
const COMPUTE_BOUND = 0.4; // share of the time that computes, from which its part shows the families of kernels
const LITTLE_FAMILY = 0.03;
const MAX_BARS = 4;

export function showHead() {
  byId("title").textContent = byId("title").title = page.file;
  const kernels = page.devices.reduce((sum, device) => sum + device.kernel_count, 0);
  const words = [
    page.program,
    page.profiler !== "nsys" ? page.profiler : page.nsys ? `nsys ${page.nsys}` : "nsys, unknown version",
    page.devices.length === 1 ? "1 GPU" : `${page.devices.length} GPUs`,
    `${countText(kernels)} kernels`,
    `${countText(page.timeline.events)} events`,
    page.narrowed ? "limited to a time window" : null,
  ];
  byId("facts").textContent = byId("facts").title = words.filter(Boolean).join(" · ");
}

export function showAnswer() {
  showCovers();
  for (const show of [showSentence, showDevices, showCards]) followCover(show);
}

function showSentence() {
  byId("answer-title").replaceChildren(...prose(page.answer));
  const [first, ...others] = page.answer_basis;
  const more = others.map((text) => softLine(text));
  byId("basis").replaceChildren(more.length ? el("details", el("summary", first), ...more) : el("p", first));
}

function showDevices() {
  const { devices } = page;
  if (devices.length === 1) return byId("devices").replaceChildren(...deviceFigures(devices[0], deviceBar(devices[0])));
  byId("devices").replaceChildren(...devices.slice(0, MAX_BARS).map(deviceLine), sharedParts(devices));
  byId("figures").replaceChildren(
    el(
      "details",
      el("summary", `The figures of ${devices.length} GPUs`),
      ...devices.flatMap((device, at) => deviceFigures(device, at < MAX_BARS ? null : deviceBar(device))),
    ),
  );
}

// A bar between the name of a device and the share that computes.
function deviceLine(device) {
  const view = coveredView(device);
  const compute = view.parts.find(({ look }) => look === "compute")?.ns ?? 0;
  const words = view.window_ns ? `${percent(compute, view.window_ns)} compute` : "no work";
  return el("div.device-line", el("b", device.id), deviceBar(device), el("span", words));
}

// The parts of all devices, from the smallest share to the largest.
function sharedParts(devices) {
  const views = devices.map(coveredView).filter((view) => view.window_ns);
  const looks = new Map(views.flatMap((view) => view.parts.map((part) => [part.look, part.word])));
  const rows = [...looks].map(([look, word]) => {
    const shares = views.map((view) => (view.parts.find((part) => part.look === look)?.ns ?? 0) / view.window_ns);
    return { look, word, least: Math.min(...shares), most: Math.max(...shares) };
  });
  return el(
    "ul.parts",
    ...rows
      .filter(({ most }) => most >= LITTLE)
      .map(({ look, word, least, most }) => {
        const [low, high] = [percent(least, 1), percent(most, 1)];
        const range = low === high ? high : `${low.replace("%", "")} to ${high}`;
        return partItem(look, word, range);
      }),
  );
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

// What the bar covers, the bar if it belongs here, and the parts.
function deviceFigures(device, bar) {
  const view = coveredView(device);
  const whole = view.window_ns;
  const longer = device.views.find((other) => other.window_ns > whole)?.window_ns,
    run = "not_measured" in page.iterations ? (page.findings[0]?.gain.of_ns ?? 0) : 0; // without iterations gains are of it
  const part = longer
    ? `${percent(whole, longer)} of the window`
    : run > 1.05 * whole && `${percent(whole, run)} of the run`;
  const covered = `${duration(whole)} ${view.covers}${part ? ` (${part})` : ""}`;
  return [
    el(
      "div.device-head",
      el("b", device.id),
      el("span.soft", device.name),
      el("span", whole ? covered : `no work ${view.covers}`),
      el("span", `busy ${percent(view.busy_ns, whole)}`),
      el("span", `idle ${percent(view.idle_ns, whole)} in ${countText(view.gap_count)} gaps`),
    ),
    ...(bar ? [bar] : []),
    partsList(device, view),
  ];
}

function partsList(device, view) {
  const { parts, window_ns: whole } = view;
  const item = ({ look, word, ns }) => {
    const title = page.cause_words[look.replace("idle_", "")];
    return partItem(look, word, percent(ns, whole), { title, more: duration(ns) });
  };
  const little = parts.filter((part) => part.ns < LITTLE * whole);
  const items = el("ul.parts", ...parts.filter((part) => !little.includes(part)).map(item));
  const options = { class: "rest", title: "Show these kernels" };
  items.firstChild?.after(
    ...familiesOf(view).map(({ family, word, ns }) =>
      el(
        "li.family",
        actionButton(`${word} ${percent(ns, whole)}`, options, () => showFamily(device.id, family)),
      ),
    ),
  );
  if (little.length === 1) items.append(item(little[0]));
  if (little.length > 1) {
    const sum = little.reduce((ns, part) => ns + part.ns, 0);
    const text = `+ ${little.length} below 1%, ${duration(sum)} in total`;
    const more = restButton(text, () => more.parentElement?.replaceWith(...little.map(item)));
    items.append(el("li", more));
  }
  return items;
}

function restButton(text, action) {
  return actionButton(text, { class: "rest", "aria-expanded": "false" }, action);
}

function showCards() {
  const cards = page.findings.slice(0, CARDS).map(findingCard);
  byId("costliest").hidden = !cards.length; // the answer says that there is none
  byId("cards").replaceChildren(...cards);
}

// Three lines: the title with its cost, what to do, and what that is predicted to give; the rest opens below.
function findingCard(finding) {
  const share = el("b", { class: "tone", title: gainTitle(finding), text: gainShare(finding) });
  return el(
    "li",
    { class: "card " + finding.severity },
    findingTitle(finding, share, " "),
    el("p", ...prose(finding.remedy || firstSentence(finding.advice))),
    el(
      "details",
      el("summary", ...gainWords(finding), el("span.link", "why, and how")),
      findingCost(finding),
      el("p", ...prose(finding.advice)),
      codeSnippet(finding.code, Infinity),
    ),
  );
}

function gainTitle({ gain }) {
  const base = `of ${duration(gain.of_ns)}`;
  if (gain.source === "predicted") return `${base}, from a replay of the capture (traceview whatif: ${gain.change})`;
  return gain.source === "bound" ? `at most, ${base}: ${gain.reason}` : `the gain is unknown: ${gain.reason}`;
}

function firstSentence(text) {
  return text.split(/(?<=[.:)]) (?=[A-Z(])/)[0];
}

// A click on the title moves the timeline to the worst place of the finding.
export function findingTitle(finding, ...before) {
  const [worst] = finding.evidence;
  const content = [...before, ...prose(finding.title)];
  if (!worst) return el("span.goto", ...content);
  const title = `${finding.title.replaceAll("`", "")}: show the worst place in the timeline`;
  return actionButton(content, { class: "goto", title }, () => showPlace(worst));
}

export function findingCost(finding) {
  const parts = [el("span.tone", finding.severity), " · "];
  parts.push(
    el("b", { title: gainTitle(finding), text: gainShare(finding) }),
    ` · it cost ${duration(finding.cost_ns)}`,
  );
  if (finding.per_iteration_ns !== null) parts.push(`, ${duration(finding.per_iteration_ns)} per iteration`);
  if (finding.device && page.devices.length > 1) parts.push(" · ", el("span.whole", finding.device));
  if (finding.unsure_because) parts.push(el("span.soft", ` · Unsure: ${finding.unsure_because}`));
  return el("p.price", ...parts);
}

// What the remedy would give.
export function findingGain(finding) {
  const words = gainWords(finding);
  return words.length ? el("p", ...words) : null;
}

function gainWords(finding) {
  const { gain } = finding;
  if (gain.source !== "predicted") return [];
  const after = timeRange(gain.of_ns - gain.high_ns, gain.of_ns - gain.low_ns);
  const words = `${duration(gain.of_ns)} → ${duration(gain.of_ns - gain.ns)} (${after})`;
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
