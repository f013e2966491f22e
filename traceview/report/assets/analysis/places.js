// A worst place of a finding is one selection, in the cards, the list, the timeline and the panel.
import { prose, queryAll, softLine } from "../core/dom.js";
import { page } from "../core/page.js";
import { linkTo } from "../timeline/linked.js";

export function showPlace(place) {
  const number = page.findings.findIndex(({ evidence }) => evidence.includes(place)),
    { title, remedy, evidence } = page.findings[number];
  const content = remedy ? [softLine(...prose(remedy))] : [];
  const mark = (now) => {
    const buttons = queryAll(`#all .finding:nth-child(${number + 1}) .places button`);
    for (const one of [buttons[evidence.indexOf(now)], queryAll("#cards .card")[number]])
      one?.setAttribute("aria-current", "true");
  };
  linkTo({ title, words: "places", places: evidence, content, mark }, place);
}
