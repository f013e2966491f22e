// Entry of the page of a fleet. Names come from captures and reach the page as text only.
import { readColumn, inflateElement } from "../core/columns.js";
import { byId, choiceButtons, context2d, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { refreshColours, swatch, watchTheme } from "../core/palette.js";
import { duration } from "../core/words.js";
import { showAnswer, showTables } from "./answer.js";
import { selectCell, fittingHeight, watchInput } from "./moves.js";
import { PARTS, drawMap } from "./ranks.js";
import { FIGURES, ORDERS, heatColour, sortRanks, colourScale } from "./scale.js";
import { content, heat, map } from "./state.js";
import { drawTogether, loadTogether } from "./together.js";

function showControls() {
  const choices = Object.entries(FIGURES).map(([figure, title]) => ({
    text: figure,
    title,
    pressed: figure === map.figure,
    choose: () => {
      map.figure = /** @type {import("../types").Figure} */ (figure);
      map.image = null;
      showLegend();
      drawMap();
    },
  }));
  byId("figures").append(...choiceButtons(choices));
  for (const [name, [words]] of Object.entries(ORDERS))
    byId("order").append(el("option", { value: name, text: words }));
  byId("figures").hidden = !heat.columns;
}

function showLegend() {
  const place = byId("legend");
  place.replaceChildren();
  for (const { look, words, pattern = "" } of PARTS) place.append(el("span", swatch(look, pattern), words));
  if (!heat.columns) return;
  const ramp = el("canvas", { width: 120, height: 12, "aria-hidden": "true" }),
    pen = context2d(ramp),
    [low, high] = colourScale(map.figure);
  for (let x = 0; x < 120; x++) {
    pen.fillStyle = `rgb(${heatColour(x / 119).join(" ")})`;
    pen.fillRect(x, 0, 1, 12);
  }
  const most = `${duration(high)} or more. Pale: skipped iterations. Empty: not in the capture.`;
  place.append(el("span", `${FIGURES[map.figure]}: ${duration(low)}`, ramp, most));
}

function onThemeChange() {
  refreshColours();
  showLegend();
  drawMap();
  drawTogether();
}

async function start() {
  page.file = "fleet";
  const buffer = await inflateElement("heat");
  loadTogether(buffer);
  if (content.heat) {
    const size = content.ranks.length * content.heat.names.length;
    Object.assign(heat, { columns: content.heat.names.length, names: content.heat.names, steady: content.heat.steady });
    // Stored values are greater by 1; 0 marks an iteration that a rank does not have.
    for (const figure of Object.keys(FIGURES))
      heat[figure] = Float64Array.from(readColumn(buffer, content.heat[figure], size), (value) => value - 1);
    byId("merged").hidden = content.heat.merged === 1;
    byId("merged").textContent =
      `Each column stands for ${content.heat.merged} iterations and shows their largest value.`;
  }
  showAnswer();
  showTables();
  sortRanks("slowest");
  map.height = fittingHeight();
  showControls();
  watchTheme(onThemeChange);
  onThemeChange();
  watchInput();
  map.row = 0;
  map.column = Math.max(0, heat.steady.indexOf(1));
  document.documentElement.dataset.shown = "all";
  selectCell(0);
  document.documentElement.dataset.ready = "";
}

start();
