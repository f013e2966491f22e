// The legend: a click on an item hides its marks, a double click or Alt and a click hides all others.
import { chartFigures } from "../charts/figures.js";
import { actionButton, byId, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { SERIES_COLOURS, lookWord, swatch } from "../core/palette.js";
import { middle } from "../core/words.js";
import { colourBy, colours, seriesTint } from "./colours.js";
import { schedule } from "./view.js";

const NOT_LISTED = ["range", "sample", "iteration", "skipped", "counter"];
const NAME_LENGTH = 34;

export function startLegend() {
  const menu = el(
    "select",
    { id: "colour-by", "aria-label": "Colour of kernels", onchange: () => change(menu.value) },
    ...["class", "name", "family"].map((by) => el("option", { value: by, text: by === "name" ? "kernel name" : by })),
  );
  byId("legend").replaceChildren(
    el("summary", "Legend"),
    el(
      "div.legend",
      el("label", "Colour by ", menu),
      el("span", { class: "legend", id: "legend-items" }),
      actionButton("Show all", { id: "legend-all", hidden: true }, () => isolate(null)),
    ),
  );
  fillLegend();
}

async function change(by) {
  await chartFigures(); // has the families
  colourBy(by);
  fillLegend();
  schedule();
}

// The items as { tint, word, colour }, colour a look or the name of a custom property.
function legendItems() {
  const used = new Set(page.timeline.used),
    kernels = ["compute", "communication"];
  const looks = page.looks
    .map((look, tint) => ({ tint, word: lookWord(look), colour: look }))
    .filter(({ colour }) => used.has(colour) && !NOT_LISTED.includes(colour));
  if (colours.by === "class") return looks;
  const series = [...colours.series, `other ${colours.by === "name" ? "names" : "families"}`];
  return [
    ...series.map((word, place) => {
      const at = place < colours.series.length ? place : SERIES_COLOURS;
      return { tint: seriesTint(at), word, colour: `series-${at}` };
    }),
    ...looks.filter(({ colour }) => !kernels.includes(colour)),
  ];
}

function fillLegend() {
  byId("legend-items").replaceChildren(...legendItems().map(legendButton));
  byId("legend-all").hidden = !Object.values(colours.hidden).includes(true);
}

function legendButton({ tint, word, colour }) {
  const options = {
    "aria-pressed": String(!colours.hidden[tint]),
    "data-tint": tint,
    title: `${word}: click to hide or show; double click, Alt and click, or Shift+Enter, to hide all others`,
    ondblclick: () => isolate(tint),
    onkeydown: (event) => {
      if (event.key !== "Enter" || !event.shiftKey) return;
      event.preventDefault();
      isolate(tint);
    },
  };
  const content = [swatch(colour), middle(word, NAME_LENGTH)];
  return actionButton(content, options, ({ altKey }) => (altKey ? isolate(tint) : toggle(tint)));
}

function toggle(tint) {
  colours.hidden[tint] = !colours.hidden[tint];
  update();
}

// Hides all other items, or shows all: null, or an item that is alone already.
function isolate(tint) {
  const others = legendItems().filter((item) => item.tint !== tint);
  const alone = tint === null || (!colours.hidden[tint] && others.every((item) => colours.hidden[item.tint]));
  colours.hidden = alone ? {} : Object.fromEntries(others.map((item) => [item.tint, true]));
  update();
}

// Buttons stay in place: a double click needs both clicks on the same element.
function update() {
  for (const button of byId("legend-items").children)
    if (button instanceof HTMLElement)
      button.setAttribute("aria-pressed", String(!colours.hidden[Number(button.dataset.tint)]));
  byId("legend-all").hidden = !Object.values(colours.hidden).includes(true);
  schedule();
}
