// The page of a fleet, put together. Names come from captures: they reach the page as text alone.
const page = { file: "fleet" };
const content = JSON.parse(byId("content").textContent);
const heat = { columns: 0, names: [], steady: [] };

function label(row) {
  return content.ranks[row].label;
}

function answer() {
  byId("title").textContent = content.title;
  byId("facts").textContent = content.facts;
  byId("verdict").textContent = content.verdict;
  const skipped = content.skipped.length;
  byId("skipped").hidden = !skipped;
  if (skipped) byId("skipped").textContent = `${count(skipped)} of ${count(skipped + content.reports)} reports could not be read and are not in any figure; the table below names them.`;
  for (const one of content.advice)
    byId("advice").append(el("li", { class: "card" },
      el("button", { type: "button", class: "goto", text: one.title, onclick: () => { choose(map.order.indexOf(one.rank)); byId("stage").focus(); } }),
      el("p", { class: "price" }, el("b", { text: one.price })),
      el("p", { text: one.text })));
  for (const note of content.notes) byId("lacks").append(el("li", { text: note }));
}

function tables() {
  const each = content.each ? "means of a steady iteration" : "whole captures";
  const add = (title, columns, rows, wide = "") => rows.length && byId("each").append(el("section", { class: wide }, el("h2", { text: title }), table(title, columns, rows, 40)));
  const slowest = [...content.ranks].sort((a, b) => (b.lag ?? b.own) - (a.lag ?? a.own));
  add(`Ranks, ${each}, slowest first`, [
    named("rank", (rank) => rank.label, (rank) => (rank.straggler ? `! ${rank.label}` : rank.label)), unseen("straggler", (rank) => (rank.straggler ? 1 : 0)), ...(content.sets > 1 ? [counted("set", (rank) => rank.set + 1)] : []), unseen("file", (rank) => rank.file), unseen("device", (rank) => rank.device), named("GPU", (rank) => rank.gpu),
    ...["wall", "own"].map((key) => lasting(key, (rank) => rank[key])),
    lasting("lag", (rank) => rank.lag ?? "", (rank) => (rank.lag === null ? "-" : milliseconds(rank.lag))),
    ...["compute", "exposed_communication", "copies", "idle"].map((key) => lasting(key.replace(/_/g, " "), (rank) => rank[key])),
    lasting("waits", (rank) => rank.wait), lasting("of it bare", (rank) => rank.bare_wait), lasting("others wait for it", (rank) => rank.caused), lasting("of that bare", (rank) => rank.bare_caused),
    ...content.causes.map((cause, place) => unseen(`idle_${cause}_ns`, (rank) => rank.causes[place])),
    counted("kernels", (rank) => rank.kernels), sharing("came last", (rank) => rank.last_count, (rank) => rank.matched), counted("iterations", (rank) => rank.iterations),
  ], slowest, "wide");
  add("Collectives, matched across ranks", [
    named("what", (group) => group.kind), named("on", (group) => group.name), named("matched by", (group) => group.how), counted("ranks", (group) => group.ranks), counted("count", (group) => group.count),
    lasting("skew, median", (group) => group.skew_median), lasting("skew, 95%", (group) => group.skew_p95), lasting("transfer", (group) => group.transfer), lasting("waited", (group) => group.waited),
    named("last most often", (group) => label(group.last)), sharing("that often", (group) => group.last_count, (group) => group.count),
  ], content.groups, "wide");
  add(`Who waited for whom${content.pairCount > content.pairs.length ? `, the longest of ${count(content.pairCount)}` : ""}`, [
    named("rank", (pair) => label(pair.waiter)), named("waited for", (pair) => label(pair.last)), lasting("waited", (pair) => pair.waited), counted("collectives", (pair) => pair.count),
  ], content.pairs);
  add("Clocks", [
    named("report", (clock) => clock.file), lasting("offset", (clock) => clock.offset), named("how", (clock) => clock.words), named("beside", (clock) => clock.session),
    unseen("drift_ns_per_s", (clock) => clock.drift), unseen("uncertainty_ns", (clock) => clock.uncertainty ?? ""),
  ], content.clocks, "wide");
  add("Reports that could not be read", [named("report", (one) => one.file), named("why", (one) => one.reason)], content.skipped);
}

function choose(row, column = map.column) {
  map.row = Math.max(0, Math.min(map.order.length - 1, row));
  map.column = Math.max(0, Math.min(Math.max(heat.columns - 1, 0), column));
  const scroll = byId("scroll"), y = map.row * map.height, room = scroll.clientHeight - AXIS;
  if (y < scroll.scrollTop) scroll.scrollTop = y;
  else if (y + map.height > scroll.scrollTop + room) scroll.scrollTop = y + map.height - room;
  byId("readout").textContent = wordsAt(map.row, map.column);
  drawMap();
}

function fitHeight() {
  return Math.max(LOWEST, Math.min(TALLEST * 0.8, (HIGH - AXIS) / Math.max(map.order.length, 1)));
}

function rows(how) {
  const before = map.height;
  map.height = how === "fit" ? fitHeight() : Math.max(LOWEST, Math.min(TALLEST, before * (how === "in" ? 1.5 : 1 / 1.5)));
  drawMap();
  // The chosen rank stays where it was.
  byId("scroll").scrollTop += map.row * (map.height - before);
  drawMap();
}

function placeAt(event) {
  const box = byId("canvas").getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top, left = heatLeft(box.width);
  const row = Math.floor((y - AXIS + byId("scroll").scrollTop) / map.height);
  if (y < AXIS || row < 0 || row >= map.order.length) return null;
  return [row, x < left || !heat.columns ? null : Math.min(heat.columns - 1, Math.floor((x - left) / ((box.width - left) / heat.columns)))];
}

const KEYS = {
  ArrowUp: () => choose(map.row - 1), ArrowDown: () => choose(map.row + 1), ArrowLeft: () => choose(map.row, map.column - 1), ArrowRight: () => choose(map.row, map.column + 1),
  Home: () => choose(0), End: () => choose(map.order.length - 1),
  PageUp: () => choose(map.row - Math.max(1, Math.round(HIGH / map.height / 2))), PageDown: () => choose(map.row + Math.max(1, Math.round(HIGH / map.height / 2))),
  "+": () => rows("in"), "=": () => rows("in"), "-": () => rows("out"), 0: () => rows("fit"),
};

function listen() {
  const stage = byId("stage"), tip = byId("tip");
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
  stage.addEventListener("pointerleave", () => { tip.hidden = true; });
  stage.addEventListener("click", (event) => { const place = placeAt(event); if (place) choose(place[0], place[1] ?? map.column); });
  byId("scroll").addEventListener("scroll", drawMap);
  addEventListener("resize", drawMap);
  for (const button of document.querySelectorAll("[data-rows]")) button.addEventListener("click", () => rows(button.dataset.rows));
  byId("order").addEventListener("change", () => { orderRanks(byId("order").value); choose(map.row); });
  byId("find").addEventListener("input", () => {
    const text = byId("find").value.toLowerCase(), row = map.order.findIndex((rank) => text && label(rank).toLowerCase().includes(text));
    if (row >= 0) choose(row);
  });
  byId("png").addEventListener("click", savePicture);
}

// All ranks, at a height that still fits a picture.
async function savePicture() {
  const wide = 1400, height = Math.max(1, Math.min(map.height, 4000 / map.order.length)), high = Math.ceil(AXIS + map.order.length * height);
  const canvas = el("canvas", { width: wide, height: high });
  paint(canvas.getContext("2d"), wide, high, 0, height);
  save(fileName("ranks", "png"), await new Promise((resolve) => canvas.toBlob(resolve, "image/png")));
}

function controls() {
  for (const [figure, words] of Object.entries(FIGURES))
    byId("figures").append(el("button", { type: "button", text: figure, title: words, "aria-pressed": String(figure === map.figure), onclick: (event) => {
      map.figure = figure;
      map.image = null;
      for (const other of byId("figures").children) other.setAttribute("aria-pressed", String(other === event.target));
      legend();
      drawMap();
    } }));
  for (const [name, [words]] of Object.entries(ORDERS)) byId("order").append(el("option", { value: name, text: words }));
  byId("figures").hidden = !heat.columns;
}

function legend() {
  const place = byId("legend");
  place.replaceChildren();
  for (const { look, words, pattern } of PARTS) place.append(el("span", {}, el("i", { class: `swatch ${pattern ?? ""}`, "--fill": `var(--${look})`, "aria-hidden": "true" }), words));
  if (!heat.columns) return;
  const ramp = el("canvas", { width: 120, height: 12, "aria-hidden": "true" }), pen = ramp.getContext("2d"), [low, high] = scaleOf(map.figure);
  for (let x = 0; x < 120; x++) {
    pen.fillStyle = `rgb(${colourAt(x / 119).join(" ")})`;
    pen.fillRect(x, 0, 1, 12);
  }
  place.append(el("span", {}, `${FIGURES[map.figure]}: ${milliseconds(low)}`, ramp, `${milliseconds(high)} and more. Paler: set aside. Empty: not captured.`));
}

function restyle() {
  palette.css = getComputedStyle(document.documentElement);
  palette.known.clear();
  legend();
  drawMap();
}

async function start() {
  if (content.heat) {
    const buffer = await inflated("heat"), size = content.ranks.length * content.heat.names.length;
    Object.assign(heat, { columns: content.heat.names.length, names: content.heat.names, steady: content.heat.steady });
    // 0 stands for an iteration that a rank has not.
    for (const figure of Object.keys(FIGURES)) heat[figure] = Float64Array.from(column(buffer, content.heat[figure], size), (value) => value - 1);
    byId("merged").hidden = content.heat.merged === 1;
    byId("merged").textContent = `Each column stands for ${content.heat.merged} iterations and shows the largest of them.`;
  }
  answer();
  tables();
  orderRanks("slowest");
  map.height = fitHeight();
  controls();
  watchTheme(restyle);
  restyle();
  listen();
  map.row = 0;
  map.column = Math.max(0, heat.steady.indexOf(1));
  document.documentElement.dataset.shown = "";
  choose(0);
  document.documentElement.dataset.ready = "";
}

start();
