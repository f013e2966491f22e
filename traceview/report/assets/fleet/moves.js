// Keyboard, pointer and buttons of the ranks.
import { byId } from "../core/dom.js";
import { savePicture } from "./picture.js";
import { AXIS, HIGH, LOWEST, TALLEST, drawMap, heatLeft } from "./ranks.js";
import { orderRanks } from "./scale.js";
import { heat, map } from "./state.js";
import { label, wordsAt } from "./words.js";

export function choose(row, column = map.column) {
  map.row = Math.max(0, Math.min(map.order.length - 1, row));
  map.column = Math.max(0, Math.min(Math.max(heat.columns - 1, 0), column));
  const scroll = byId("scroll"),
    y = map.row * map.height,
    room = scroll.clientHeight - AXIS;
  if (y < scroll.scrollTop) scroll.scrollTop = y;
  else if (y + map.height > scroll.scrollTop + room) scroll.scrollTop = y + map.height - room;
  byId("readout").textContent = wordsAt(map.row, map.column);
  drawMap();
}

export function fitHeight() {
  return Math.max(LOWEST, Math.min(TALLEST * 0.8, (HIGH - AXIS) / Math.max(map.order.length, 1)));
}

function rows(how) {
  const before = map.height;
  map.height =
    how === "fit" ? fitHeight() : Math.max(LOWEST, Math.min(TALLEST, before * (how === "in" ? 1.5 : 1 / 1.5)));
  drawMap();
  // The chosen rank stays where it was.
  byId("scroll").scrollTop += map.row * (map.height - before);
  drawMap();
}

function placeAt(event) {
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
  ArrowUp: () => choose(map.row - 1),
  ArrowDown: () => choose(map.row + 1),
  ArrowLeft: () => choose(map.row, map.column - 1),
  ArrowRight: () => choose(map.row, map.column + 1),
  Home: () => choose(0),
  End: () => choose(map.order.length - 1),
  PageUp: () => choose(map.row - Math.max(1, Math.round(HIGH / map.height / 2))),
  PageDown: () => choose(map.row + Math.max(1, Math.round(HIGH / map.height / 2))),
  "+": () => rows("in"),
  "=": () => rows("in"),
  "-": () => rows("out"),
  0: () => rows("fit"),
};

export function listen() {
  const stage = byId("stage"),
    tip = byId("tip");
  stage.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, select")) return;
    event.preventDefault();
    byId("find").focus();
  });
  stage.addEventListener("pointermove", (event) => {
    const place = placeAt(event);
    tip.hidden = !place;
    if (!place) return;
    tip.textContent = wordsAt(...place);
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - 480)) + "px";
    tip.style.top = Math.min(event.clientY + 16, innerHeight - 110) + "px";
  });
  stage.addEventListener("pointerleave", () => {
    tip.hidden = true;
  });
  stage.addEventListener("click", (event) => {
    const place = placeAt(event);
    if (place) choose(place[0], place[1] ?? map.column);
  });
  byId("scroll").addEventListener("scroll", drawMap);
  addEventListener("resize", drawMap);
  for (const button of document.querySelectorAll("[data-rows]"))
    button.addEventListener("click", () => rows(button.dataset.rows));
  byId("order").addEventListener("change", () => {
    orderRanks(byId("order").value);
    choose(map.row);
  });
  byId("find").addEventListener("input", () => {
    const text = byId("find").value.toLowerCase(),
      row = map.order.findIndex((rank) => text && label(rank).toLowerCase().includes(text));
    if (row >= 0) choose(row);
  });
  byId("png").addEventListener("click", savePicture);
}
