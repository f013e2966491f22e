// All findings: one table of their costs, then each with its advice and evidence.
import { actionButton, byId, el, prose } from "../core/dom.js";
import { page } from "../core/page.js";
import { countColumn, durationColumn, table, textColumn, unitColumn } from "../core/table.js";
import { codeSnippet, findingCost, findingGain, findingTitle } from "./answer.js";
import { afterCover, coverWords } from "./cover.js";
import { showPlace } from "./places.js";

const SHOWN_FRAMES = 4;

export function showFindings() {
  drawFindings();
  afterCover.push(drawFindings);
}

function drawFindings() {
  const found = page.findings.map(findingArticle);
  byId("findings-title").textContent = ["All findings", coverWords()].filter(Boolean).join(", ");
  byId("all").replaceChildren(
    ...(found.length ? [findingsTable(), ...found] : [el("p", { text: "No finding: nothing cost GPU time." })]),
  );
}

// Where the host was: the program's line and what it calls; the tip has all callers.
function stackLine(host) {
  if (!host?.stack.length) return null;
  const frames = host.stack.map(({ function: name, file, line }) =>
    file ? `${name} (${line ? `${file}:${line}` : file})` : name,
  );
  const below = frames.slice(host.own);
  const shown = below.length > SHOWN_FRAMES ? [below[0], "…", ...below.slice(1 - SHOWN_FRAMES)] : below;
  return el("p", { class: "soft mono", title: frames.join("\n"), text: shown.join(" › ") });
}

function findingsTable() {
  return table(
    "Findings",
    [
      textColumn("finding", (one) => one.title, findingTitle),
      textColumn("severity", (one) => one.severity, severityWord),
      ...(page.devices.length > 1 ? [textColumn("GPU", (one) => one.device ?? "")] : []),
      { ...unitColumn("gain", "fraction", (one) => one.gain.fraction), field: "gain_fraction" },
      textColumn("gain is", (one) => one.gain.source),
      durationColumn("cost", (one) => one.cost_ns),
      durationColumn("per iteration", (one) => one.per_iteration_ns),
      countColumn("places", (one) => one.evidence.length),
      { field: "id", value: (one) => one.id },
      { field: "advice", value: (one) => one.advice },
      { field: "code", value: (one) => one.code },
      { field: "unsure_because", value: (one) => one.unsure_because ?? "" },
    ],
    page.findings,
  );
}

function severityWord({ severity }) {
  return el("span", { class: "tone " + severity, text: severity });
}

function findingArticle(one) {
  const places = one.evidence.map((place) =>
    el(
      "li",
      {},
      actionButton(prose(place.text), {}, () => showPlace(place)),
    ),
  );
  return el(
    "article",
    { class: "finding " + one.severity, "data-finding": one.id },
    el("h3", {}, findingTitle(one)),
    findingCost(one),
    findingGain(one),
    stackLine(one.host),
    el("p", {}, ...prose(one.advice)),
    codeSnippet(one.code, 12),
    places.length ? el("p", { class: "soft", text: "Worst places (click to show in the timeline):" }) : null,
    places.length ? el("ul", { class: "places" }, ...places) : null,
  );
}
