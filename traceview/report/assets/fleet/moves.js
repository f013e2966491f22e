// Keyboard, pointer and buttons of the ranks.
import { queryAll, byId } from "../core/dom.js";
import { watchTip } from "../core/tip.js";
import { AXIS, HIGH, LOWEST, TALLEST, drawMap, heatLeft } from "./ranks.js";
import { sortRanks } from "./scale.js";
import { heat, map } from "./state.js";
import { rankLabel, cellText } from "./words.js";

export function selectCell(row, column = map.column) {
  map.row = Math.max(0, Math.min(map.order.length - 1, row));
  map.column = Math.max(0, Math.min(Math.max(heat.columns - 1, 0), column));
  const scroll = byId("scroll"),
    y = map.row * map.height,
    room = scroll.clientHeight - AXIS;
  if (y < scroll.scrollTop) scroll.scrollTop = y;
  else if (y + map.height > scroll.scrollTop + room) scroll.scrollTop = y + map.height - room;
  byId("readout").textContent = cellText(map.row, map.column);
  drawMap();
}

export function fittingHeight() {
  return Math.max(LOWEST, Math.min(TALLEST * 0.8, (HIGH - AXIS) / Math.max(map.order.length, 1)));
}

function resizeRows(how) {
  const before = map.height;
  map.height =
    how === "fit" ? fittingHeight() : Math.max(LOWEST, Math.min(TALLEST, before * (how === "in" ? 1.5 : 1 / 1.5)));
  drawMap();
  // The selected rank keeps its place on the screen.
  byId("scroll").scrollTop += map.row * (map.height - before);
  drawMap();
}

function cellAt(event) {
  const box = byId("canvas").getBoundingClientRect(),
    x = event.clientX - box.left,
    y = event.clientY - box.top,
    left = heatLeft(box.width);
  const row = Math.floor((y - AXIS + byId("scroll").scrollTop) / map.height);
  if (y < AXIS || row < 0 || row >= map.order.length) return null;
  return [
    row,
    x < left || !heat.columns
      ? null
      : Math.min(heat.columns - 1, Math.floor((x - left) / ((box.width - left) / heat.columns))),
  ];
}

const KEYS = {
  ArrowUp: () => selectCell(map.row - 1),
  ArrowDown: () => selectCell(map.row + 1),
  ArrowLeft: () => selectCell(map.row, map.column - 1),
  ArrowRight: () => selectCell(map.row, map.column + 1),
  Home: () => selectCell(0),
  End: () => selectCell(map.order.length - 1),
  PageUp: () => selectCell(map.row - Math.max(1, Math.round(HIGH / map.height / 2))),
  PageDown: () => selectCell(map.row + Math.max(1, Math.round(HIGH / map.height / 2))),
  "+": () => resizeRows("in"),
  "=": () => resizeRows("in"),
  "-": () => resizeRows("out"),
  0: () => resizeRows("fit"),
};

function onSlash(event) {
  if (event.key !== "/" || event.target.closest("input, select")) return;
  event.preventDefault();
  byId("find").focus();
}

export function watchInput() {
  const stage = byId("stage");
  stage.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  addEventListener("keydown", onSlash);
  watchTip(stage, (event) => {
    const place = cellAt(event);
    return place ? cellText(place[0], place[1]) : "";
  });
  stage.addEventListener("click", (event) => {
    const place = cellAt(event);
    if (place) selectCell(place[0], place[1] ?? map.column);
  });
  byId("scroll").addEventListener("scroll", drawMap);
  addEventListener("resize", drawMap);
  for (const button of queryAll("[data-rows]")) button.addEventListener("click", () => resizeRows(button.dataset.rows));
  byId("order").addEventListener("change", () => {
    sortRanks(byId("order", HTMLSelectElement).value);
    selectCell(map.row);
    dispatchEvent(new Event("resize"));
  });
  byId("find").addEventListener("input", () => {
    const text = byId("find", HTMLInputElement).value.toLowerCase(),
      row = map.order.findIndex((rank) => text && rankLabel(rank).toLowerCase().includes(text));
    if (row >= 0) selectCell(row);
  });
}
