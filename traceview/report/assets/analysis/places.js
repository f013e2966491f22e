// The worst places of the findings: a place is one selection, in the cards, the list, the timeline and the panel.
import { el, prose, queryAll } from "../core/dom.js";
import { page } from "../core/page.js";
import { linkTo } from "../timeline/linked.js";
import { afterCover } from "./cover.js";

const current = { at: -1 };

export function watchPlaces() {
  afterCover.push(() => Object.assign(current, { at: -1 }));
  document.addEventListener("keydown", (/** @type {any} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    if (event.key === "[" || event.key === "]") stepPlace(event.key === "[" ? -1 : 1);
  });
}

function allPlaces() {
  return page.findings.flatMap(({ evidence }) => evidence);
}

function stepPlace(by) {
  const every = allPlaces(),
    next = current.at < 0 && by < 0 ? -1 : current.at + by;
  if (every.length) showPlace(every[(next + every.length) % every.length]);
}

export async function showPlace(place) {
  const number = page.findings.findIndex(({ evidence }) => evidence.includes(place)),
    { title, remedy, evidence } = page.findings[number];
  current.at = allPlaces().indexOf(place);
  const content = remedy ? [el("p", { class: "soft" }, ...prose(remedy))] : [];
  await linkTo(
    { title, words: "places", places: evidence, content },
    place,
    queryAll("#all .places button")[current.at],
  );
  queryAll(`[data-card="${number}"]`).forEach((card) => card.setAttribute("aria-current", "true"));
}
