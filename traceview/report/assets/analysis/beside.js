// The findings and their worst places beside the timeline; a click moves the timeline there.
import { actionButton, byId, el, prose, queryAll } from "../core/dom.js";
import { page } from "../core/page.js";
import { countText, duration, gainShare } from "../core/words.js";
import { linkTo } from "../timeline/linked.js";
import { showPanel } from "../timeline/panel.js";
import { afterCover } from "./cover.js";

/**
 * All places in order, the index of the current one, and the element that shows it as text.
 * @type {{ places: { place: object, finding: number, button: HTMLButtonElement, open: () => void }[], at: number, status: HTMLElement | null }}
 */
const beside = { places: [], at: -1, status: null };

export function showBeside() {
  drawBeside();
  afterCover.push(drawBeside);
  document.addEventListener("keydown", onPlaceKey);
}

function drawBeside() {
  if (beside.at >= 0) showPanel(); // the panel shows a place of the other findings
  Object.assign(beside, { places: [], at: -1 });
  const lists = page.findings.filter((finding) => finding.evidence.length).map(placesOfFinding);
  byId("beside").hidden = !lists.length;
  beside.status = el("span", { class: "soft", role: "status", text: placeCount() });
  const inner = el("div", { class: "beside-inner", id: "beside-inner" }, el("ol", { class: "beside-list" }, ...lists));
  const step = (by, sign, word) =>
    actionButton(sign, { "aria-label": word, title: `${word} (${by < 0 ? "[" : "]"})` }, () => stepPlace(by));
  byId("beside").replaceChildren(
    el(
      "div",
      { class: "beside-head" },
      el("h2", { id: "beside-title", text: "Worst places" }),
      beside.status,
      el("span", { class: "spacer" }),
      step(-1, "‹", "Previous place"),
      step(1, "›", "Next place"),
      foldButton(),
    ),
    inner,
  );
}

function placeCount() {
  return beside.at < 0 ? countText(beside.places.length) : `${beside.at + 1} of ${countText(beside.places.length)}`;
}

function placesOfFinding(finding, number) {
  const places = el(
    "ol",
    { class: "places", hidden: true, id: "beside-places-" + number },
    ...finding.evidence.map((place) => {
      const at = beside.places.length;
      const button = actionButton(prose(place.text), {}, () => goToPlace(at));
      beside.places.push({ place, finding: page.findings.indexOf(finding), button, open: () => open(true) });
      return el("li", {}, button);
    }),
  );
  const first = beside.places.length - finding.evidence.length;
  const price = el(
    "span",
    { class: "beside-price" },
    el("span", { class: "tone", text: finding.severity }),
    ` · ${gainShare(finding)} · ${duration(finding.cost_ns)}`,
    finding.device && page.devices.length > 1 ? ` · ${finding.device}` : "",
  );
  const options = { class: "goto", "aria-expanded": "false", "aria-controls": places.id };
  const head = actionButton([el("span", {}, ...prose(finding.title)), price], options, () =>
    places.hidden ? goToPlace(first) : open(false),
  );
  const open = (yes) => {
    places.hidden = !yes;
    head.setAttribute("aria-expanded", String(yes));
  };
  return el("li", { class: finding.severity }, head, places);
}

function stepPlace(by) {
  const last = beside.places.length - 1;
  if (last < 0) return;
  goToPlace(beside.at < 0 ? (by > 0 ? 0 : last) : (beside.at + by + last + 1) % (last + 1));
}

// A place is one selection: its card, its line in the list, the timeline and the panel.
export function showPlace(place) {
  goToPlace(beside.places.findIndex((other) => other.place === place));
}

async function goToPlace(at) {
  const { place, finding, button, open } = beside.places[at],
    inner = byId("beside-inner");
  beside.at = at;
  open();
  if (beside.status) beside.status.textContent = placeCount();
  const { title, remedy, evidence } = page.findings[finding];
  const content = [remedy ? el("p", { class: "soft" }, ...prose(remedy)) : null];
  await linkTo({ title, words: "places", places: evidence, content }, place, button);
  queryAll(`[data-card="${finding}"]`).forEach((card) => card.setAttribute("aria-current", "true"));
  // Only the list scrolls, never the page.
  const { top, bottom } = button.getBoundingClientRect(),
    box = inner.getBoundingClientRect();
  if (top < box.top || bottom > box.bottom) inner.scrollTop += top - box.top - box.height / 3;
}

function foldButton() {
  const options = {
    "aria-expanded": "true",
    "aria-controls": "beside-inner",
    "aria-label": "Findings beside the timeline",
    title: "Hide the list to make room for the timeline",
  };
  const fold = actionButton("▸", options, () => {
    const folded = byId("beside").classList.toggle("folded");
    fold.setAttribute("aria-expanded", String(!folded));
    fold.textContent = folded ? "◂" : "▸";
  });
  return fold;
}

function onPlaceKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  if (event.key === "[" || event.key === "]") stepPlace(event.key === "[" ? -1 : 1);
}
