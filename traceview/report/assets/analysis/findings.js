// All findings, each with its cost, advice and evidence.
import { actionButton, byId, el, prose, softLine } from "../core/dom.js";
import { page } from "../core/page.js";
import { codeSnippet, findingCost, findingGain, findingTitle } from "./answer.js";
import { coverWords } from "./cover.js";
import { showPlace } from "./places.js";

const SHOWN_FRAMES = 4;

export function showFindings() {
  const lists = [...new Set(page.findings.map(({ list }) => list))];
  const found = lists.flatMap((words) => {
    const articles = page.findings.filter(({ list }) => list === words).map(findingArticle);
    if (!words) return articles;
    const open = !page.findings.find(({ list }) => list === words)?.folded;
    return [el("details.findings", { open }, el("summary", `${words} (${articles.length})`), ...articles)];
  });
  byId("findings-title").textContent = ["All findings", coverWords()].filter(Boolean).join(", ");
  byId("all").replaceChildren(...(found.length ? found : [el("p", "No finding: nothing cost GPU time.")]));
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

function findingArticle(one) {
  const places = one.evidence.map((place) =>
    el(
      "li",
      actionButton(prose(place.text), {}, () => showPlace(place)),
    ),
  );
  return el(
    "article",
    { class: "finding " + one.severity, "data-finding": one.id },
    el("h3", findingTitle(one, one.title)),
    findingCost(one),
    findingGain(one),
    stackLine(one.host),
    el("p", ...prose(one.advice)),
    codeSnippet(one.code, 12),
    places.length ? softLine("Worst places (click to show in the timeline):") : null,
    places.length ? el("ul.places", ...places) : null,
  );
}
