// The first screen: where the time went, and the three findings with the highest cost.
import { byId, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { patternName, swatch } from "../core/palette.js";
import { countText, duration, percent } from "../core/words.js";
import { goTo } from "../timeline/go.js";

const CARDS = 3;

const CARD_ADVICE = 300;

const LITTLE = 0.0005;

const COUNTED = "in the counted iterations";

export function showHead() {
  byId("title").textContent = page.file;
  const kernels = page.devices.reduce((sum, device) => sum + device.kernel_count, 0);
  const words = [
    page.program,
    page.profiler !== "nsys" ? page.profiler : page.nsys ? `nsys ${page.nsys}` : "nsys, unknown version",
    page.devices.length === 1 ? "1 GPU" : `${page.devices.length} GPUs`,
    `${countText(kernels)} kernels`,
    `${countText(page.timeline.events)} events`,
    page.narrowed ? "limited to a time window" : null,
  ];
  byId("facts").textContent = words.filter(Boolean).join(" · ");
}

export function showAnswer() {
  byId("answer-title").textContent = page.answer;
  byId("basis").textContent = page.answer_basis;
  const [first, other] = page.covers;
  byId("covers").replaceChildren(...(other ? [coverButton(first, true), coverButton(other, false)] : []));
  showDevices(first);
}

// Shows the bars of the counted iterations or of the whole window.
function coverButton(words, pressed) {
  return el("button", {
    type: "button",
    "aria-pressed": String(pressed),
    title: `Show the time ${words}`,
    text: words === COUNTED ? "iterations" : "whole window",
    onclick: (event) => {
      for (const other of byId("covers").children) other.setAttribute("aria-pressed", String(other === event.target));
      showDevices(words);
    },
  });
}

function showDevices(covers) {
  byId("devices").replaceChildren(
    ...page.devices.map((device) =>
      deviceBar(device, device.views.find((view) => view.covers === covers) ?? device.views[0]),
    ),
  );
}

function deviceBar(device, view) {
  const whole = view.window_ns;
  const label = view.parts.map((part) => `${part.word} ${percent(part.ns, whole)}`).join(", ");
  const bar = el(
    "div",
    { class: "stack", role: "img", "aria-label": label },
    ...view.parts.map((part) => {
      const piece = el("span", {
        class: patternName(part.look),
        title: `${part.word}: ${duration(part.ns)}, ${percent(part.ns, whole)}`,
      });
      piece.style.flex = `${part.ns} 0 0`;
      piece.style.backgroundColor = `var(--${part.look})`;
      return piece;
    }),
  );
  const item = (part) =>
    el(
      "li",
      {},
      swatch(part.look),
      el("span", { text: part.word }),
      el("b", { text: duration(part.ns) }),
      el("span", { class: "soft", text: percent(part.ns, whole) }),
    );
  const little = view.parts.filter((part) => part.ns < LITTLE * whole);
  const items = el("ul", { class: "parts" }, ...view.parts.filter((part) => !little.includes(part)).map(item));
  if (little.length === 1) items.append(item(little[0]));
  if (little.length > 1) {
    const sum = little.reduce((ns, part) => ns + part.ns, 0);
    const more = el(
      "li",
      {},
      el("button", {
        type: "button",
        class: "rest",
        "aria-expanded": "false",
        text: `+ ${little.length} below 0.05%, ${duration(sum)} in total`,
        onclick: () => more.replaceWith(...little.map(item)),
      }),
    );
    items.append(more);
  }
  return el(
    "div",
    { class: "device" },
    el(
      "div",
      { class: "device-head" },
      el("b", { text: device.id }),
      el("span", { class: "soft", text: device.name }),
      el("span", {}, whole ? `${duration(whole)} ${view.covers}` : `no work ${view.covers}`),
      el("span", {}, `busy ${percent(view.busy_ns, whole)}`),
      el("span", {}, `idle ${percent(view.idle_ns, whole)} in ${countText(view.gap_count)} gaps`),
    ),
    bar,
    items,
  );
}

export function showCards() {
  const cards = page.findings.slice(0, CARDS).map(findingCard);
  byId("cards").replaceChildren(...(cards.length ? cards : [el("li", { text: "No finding: nothing cost GPU time." })]));
}

function findingCard(finding) {
  return el(
    "li",
    { class: "card " + finding.severity },
    findingTitle(finding),
    findingCost(finding),
    findingPrediction(finding),
    shortAdvice(finding.advice),
    codeSnippet(finding.code, 1),
  );
}

// Shows as many whole sentences as a card has room for; a button shows the rest.
function shortAdvice(text) {
  const sentences = text.split(/(?<=[.:)]) (?=[A-Z(])/);
  let kept = 1;
  while (kept < sentences.length && sentences.slice(0, kept + 1).join(" ").length <= CARD_ADVICE) kept++;
  const shown = el("p", { text: sentences.slice(0, kept).join(" ") + " " });
  if (kept < sentences.length)
    shown.append(
      el("button", {
        type: "button",
        class: "rest",
        "aria-expanded": "false",
        text: "more",
        onclick: () => {
          shown.textContent = text;
        },
      }),
    );
  return shown;
}

// A click on the title moves the timeline to the worst place of the finding.
export function findingTitle(finding) {
  const [worst] = finding.evidence;
  const text = finding.title;
  if (!worst) return el("span", { class: "goto", text });
  return el("button", {
    class: "goto",
    type: "button",
    title: "Show the worst place in the timeline",
    text,
    onclick: () => goTo(worst),
  });
}

export function findingCost(finding) {
  const parts = [el("span", { class: "tone", text: finding.severity }), " · "];
  parts.push(
    el("b", { text: duration(finding.cost_ns) }),
    " · ",
    el("span", { title: `of the ${page.total}`, text: `${(100 * finding.fraction).toFixed(1)}%` }),
  );
  if (finding.per_iteration_ns !== null) {
    const unprofiled = finding.unprofiled_per_iteration_ns ?? finding.per_iteration_ns;
    const without = duration(unprofiled);
    const title = `measured; without the profiler about ${without}`;
    const both = unprofiled === finding.per_iteration_ns ? "" : ` (${without.replace(" ms", "")})`;
    parts.push(" · ", el("span", { title, text: `${duration(finding.per_iteration_ns)}${both} per iteration` }));
  }
  if (finding.device && page.devices.length > 1)
    parts.push(" · ", el("span", { class: "whole", text: finding.device }));
  if (finding.unsure_because) parts.push(el("span", { class: "soft", text: ` · Unsure: ${finding.unsure_because}` }));
  return el("p", { class: "price" }, ...parts);
}

// What `traceview whatif` predicts for the remedy; only its page has predictions.
export function findingPrediction({ prediction }) {
  return prediction ? el("p", { class: "prediction" }, el("b", { text: "Predicted " }), prediction) : null;
}

// Shows the first lines of code; a button shows the rest.
export function codeSnippet(text, lines) {
  if (!text) return null;
  const all = text.split("\n");
  while (lines < all.length && all[lines - 1].startsWith("#")) lines++;
  const shown = el("pre", { tabindex: 0, text: all.slice(0, lines).join("\n") });
  if (all.length <= lines) return shown;
  const more = el("button", {
    type: "button",
    class: "rest",
    "aria-expanded": "false",
    text: `+ ${all.length - lines} line${all.length - lines > 1 ? "s" : ""}`,
    onclick: () => {
      shown.textContent = text;
      more.remove();
      shown.focus();
    },
  });
  return el("div", { class: "snippet" }, shown, more);
}
