// Names come from a trace: they reach the page as text alone.
const content = JSON.parse(document.getElementById("content").textContent);
const data = JSON.parse(document.getElementById("data").textContent);
const WORDS = { compute: "compute", communication: "communication", h2d: "copy h2d", d2h: "copy d2h", d2d: "copy d2d", copy: "other copy", memset: "memset", call_sync: "synchronize call", call_blocking_copy: "blocking copy call", call_memory: "allocation or free", call_api: "other CUDA call", range: "NVTX range (a colour a name)" };
// Told apart without colour too: lines of a tile of 8 by 8.
const LINES = { communication: [[0, 8, 8, 0]], h2d: [[2, 0, 2, 8], [6, 0, 6, 8]], d2h: [[0, 4, 8, 4], [4, 0, 4, 8]], d2d: [[0, 2, 8, 2], [0, 6, 8, 6]], copy: [[0, 4, 8, 4]], memset: [[0, 0, 8, 8], [0, 8, 8, 0]], call_sync: [[0, 0, 8, 8]], call_blocking_copy: [[2, 0, 2, 8]] };
const LANE = 20, AXIS = 20, NAMES = 190, SHORTEST = 200;
const root = document.documentElement;
const view = { from: 0, to: 1, step: 0 };

function el(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function time(ns) {
  const size = Math.abs(ns);
  return size >= 1e6 ? (ns / 1e6).toFixed(size >= 1e8 ? 1 : 3) + " ms" : size >= 1e3 ? (ns / 1e3).toFixed(1) + " µs" : Math.round(ns) + " ns";
}

const fills = new Map();
function fill(context, look) {
  const key = look + root.dataset.theme;
  if (!fills.has(key)) {
    const tile = new OffscreenCanvas(8, 8), on = tile.getContext("2d");
    on.fillStyle = getComputedStyle(root).getPropertyValue("--" + look).trim() || "#888";
    on.fillRect(0, 0, 8, 8);
    on.strokeStyle = "rgb(0 0 0 / 35%)";
    for (const [x, y, toX, toY] of LINES[look] ?? []) { on.beginPath(); on.moveTo(x, y); on.lineTo(toX, toY); on.stroke(); }
    fills.set(key, tile);
  }
  return context.createPattern(fills.get(key), "repeat");
}

// The iteration that stands at the left edge of a capture: as many after its middle one in each.
function current(one) {
  return Math.max(0, Math.min(one.iterations.length - 1, one.middle + view.step));
}

function begin(one) {
  return one.iterations[current(one)][0];
}

function draw() {
  data.forEach(drawOne);
  const [first] = data;
  if (first) document.getElementById("place").textContent = `${time(view.from)} to ${time(view.to)} after the beginning of iteration ${data.map((one) => one.first + current(one) + 1).join(" / ")}`;
  root.dataset.drawn = `${view.from} ${view.to} ${view.step}`;
}

function drawOne(one) {
  const box = one.canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1, wide = Math.max(box.width, NAMES + 50), high = AXIS + one.lanes.length * LANE;
  one.canvas.width = Math.round(wide * ratio);
  one.canvas.height = Math.round(high * ratio);
  const context = one.canvas.getContext("2d"), css = getComputedStyle(root), of = (name) => css.getPropertyValue(name).trim();
  context.scale(ratio, ratio);
  context.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  context.textBaseline = "middle";
  const zero = begin(one), scale = (wide - NAMES) / (view.to - view.from), at = (ns) => NAMES + (ns - zero - view.from) * scale;
  context.fillStyle = of("--card");
  context.fillRect(0, 0, wide, high);
  context.save();
  context.beginPath();
  context.rect(NAMES, 0, wide - NAMES, high);
  context.clip();
  one.iterations.forEach(([from, to], index) => {
    context.fillStyle = of(index % 2 ? "--sunk" : "--card");
    context.fillRect(at(from), AXIS, at(to) - at(from), high);
  });
  axis(context, wide, high, of);
  const looks = one.looks.map((look) => fill(context, look)), ends = one.lanes.map(() => -1);
  one.events.forEach(([lane, start, length, look, name], index) => {
    const from = at(start), to = Math.max(at(start + length), from + 0.6);
    if (to < NAMES || from > wide || (to - from < 1 && to <= ends[lane])) return;
    ends[lane] = Math.max(ends[lane], to);
    const range = one.looks[look] === "range";
    context.fillStyle = range ? of("--" + one.hue[name]) : looks[look];
    context.fillRect(from, AXIS + lane * LANE + 2, to - from, LANE - 4);
    const room = one.inner.has(index) ? Math.min(to, at(one.inner.get(index))) : to;
    if (room - from > 40) label(context, one.names[name], lane, from, room, of(range ? "--ink" : "--page"));
  });
  one.iterations.forEach(([from, to], index) => {
    context.strokeStyle = of("--mark");
    context.lineWidth = index === current(one) ? 2 : 1;
    for (const moment of index === current(one) ? [from, to] : [from]) { context.beginPath(); context.moveTo(at(moment), 0); context.lineTo(at(moment), high); context.stroke(); }
  });
  context.restore();
  context.fillStyle = of("--ink");
  one.lanes.forEach((lane, row) => context.fillText(short(context, lane, NAMES - 14), 8, AXIS + row * LANE + LANE / 2));
}

function label(context, text, lane, from, to, ink) {
  const left = Math.max(from, NAMES);
  if (to - left < 30) return;
  context.fillStyle = ink;
  context.fillText(short(context, text, to - left - 8), left + 4, AXIS + lane * LANE + LANE / 2);
}

// Ranges of one name have one colour, whatever their number, and the words of an outer one end where one inside begins.
function prepare(one) {
  one.inner = new Map();
  const open = one.lanes.map(() => []);
  one.events.forEach((event, index) => {
    const stack = open[event[0]];
    while (stack.length && one.events[stack.at(-1)][1] + one.events[stack.at(-1)][2] <= event[1]) stack.pop();
    if (stack.length && !one.inner.has(stack.at(-1))) one.inner.set(stack.at(-1), event[1]);
    stack.push(index);
  });
  one.hue = one.names.map((name) => "range-" + [...name.replace(/[0-9]/g, "")].reduce((sum, char) => (31 * sum + char.codePointAt(0)) % 997, 7) % 8);
}

function short(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 1 && context.measureText(text.slice(0, end) + "…").width > room) end = Math.floor(end * 0.8);
  return text.slice(0, end) + "…";
}

function axis(context, wide, high, of) {
  const rough = (view.to - view.from) / ((wide - NAMES) / 110), power = 10 ** Math.floor(Math.log10(rough));
  const tick = [1, 2, 5, 10].map((by) => by * power).find((size) => size >= rough);
  for (let ns = Math.ceil(view.from / tick) * tick; ns <= view.to; ns += tick) {
    const x = NAMES + (ns - view.from) * (wide - NAMES) / (view.to - view.from);
    context.fillStyle = of("--grid");
    context.fillRect(x, AXIS, 1, high);
    context.fillStyle = of("--soft");
    context.fillText(time(ns), x + 3, AXIS / 2);
  }
}

// The innermost of what is there: the one that began last.
function eventAt(one, lane, x) {
  const wide = one.canvas.getBoundingClientRect().width, per = (view.to - view.from) / (wide - NAMES), ns = begin(one) + view.from + (x - NAMES) * per;
  let best = null;
  for (const event of one.events) {
    if (event[1] > ns + 2 * per) break;
    if (event[0] === lane && event[1] + event[2] >= ns - 2 * per) best = event;
  }
  return best;
}

function change(from, to) {
  const longest = 1.2 * Math.max(...data.map((one) => one.iterations.at(-1)[1] - one.iterations[0][0]));
  const length = Math.min(Math.max(to - from, SHORTEST), longest);
  const middle = Math.min(Math.max((from + to) / 2, -longest), longest);
  [view.from, view.to] = [middle - length / 2, middle + length / 2];
  draw();
}

function zoom(by, around = (view.from + view.to) / 2) {
  change(around - (around - view.from) * by, around + (view.to - around) * by);
}

function fit() {
  const length = Math.max(...data.map((one) => { const [from, to] = one.iterations[current(one)]; return to - from; }));
  change(-0.02 * length, 1.02 * length);
}

function step(by) {
  const most = Math.max(...data.map((one) => one.iterations.length - 1 - one.middle)), least = -Math.max(...data.map((one) => one.middle));
  view.step = Math.max(least, Math.min(most, view.step + by));
  draw();
}

const ACTIONS = { before: () => step(-1), after: () => step(1), in: () => zoom(0.6), out: () => zoom(1 / 0.6), left: () => move(-0.2), right: () => move(0.2), fit };
const KEYS = { "[": "before", "]": "after", w: "in", s: "out", a: "left", d: "right", ArrowLeft: "left", ArrowRight: "right", "+": "in", "-": "out", 0: "fit" };

function move(by) {
  const length = (view.to - view.from) * by;
  change(view.from + length, view.to + length);
}

function table(of) {
  const section = el("section"), scroll = el("div", "", { class: "scroll", tabindex: "0", role: "region", "aria-label": of.title }), made = el("table"), head = el("tr");
  section.append(el("h2", of.title), scroll);
  scroll.append(made);
  of.head.forEach((word) => head.append(el("th", word, { scope: "col" })));
  made.append(head);
  of.rows.forEach((row) => { const line = el("tr"); row.forEach((cell) => line.append(el("td", cell))); made.append(line); });
  return section;
}

function words() {
  document.getElementById("title").textContent = [content.base, ...content.against.map((one) => one.file)].join(" → ");
  const verdicts = document.getElementById("verdicts"), tables = document.getElementById("tables");
  for (const one of content.against) {
    const line = el("p", "", { class: "verdict", "data-verdict": one.verdict });
    line.append(el("b", one.verdict), ` · ${one.file}: ${one.text} ${one.accounts}`);
    verdicts.append(line);
    for (const of of one.tables) if (of.rows.length) tables.append(table(content.against.length > 1 ? { ...of, title: `${one.file} · ${of.title}` } : of));
  }
  verdicts.append(el("p", [content.how, ...content.against.map((one) => `${one.file}: ${one.how}`)].join(" · "), { class: "soft" }));
  content.notes.forEach((note) => document.getElementById("notes").append(el("li", note)));
}

function captures() {
  const place = document.getElementById("timelines");
  for (const one of data) {
    prepare(one);
    const box = el("div", "", { class: "capture" });
    one.canvas = el("canvas", "", { role: "img", "aria-label": `Timeline of ${one.file}` });
    one.canvas.style.height = `${AXIS + one.lanes.length * LANE}px`;
    box.append(el("h3", one.file + (one.leftOut ? ` · the first ${one.events.length.toLocaleString("en")} events, ${one.leftOut.toLocaleString("en")} more are not drawn` : "")), one.canvas);
    place.append(box);
    one.canvas.addEventListener("pointermove", (event) => hover(one, event));
    one.canvas.addEventListener("pointerleave", () => { document.getElementById("tip").hidden = true; });
  }
}

function hover(one, event) {
  const tip = document.getElementById("tip"), box = one.canvas.getBoundingClientRect(), lane = Math.floor((event.clientY - box.top - AXIS) / LANE), x = event.clientX - box.left;
  const found = x >= NAMES && lane >= 0 && lane < one.lanes.length ? eventAt(one, lane, x) : null;
  tip.hidden = !found;
  if (!found) return;
  const look = one.looks[found[3]];
  tip.textContent = `${one.names[found[4]]} · ${WORDS[look] ?? look} · ${time(found[2])}, ${time(found[1] - begin(one))} after the beginning`;
  tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - 430)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, window.innerHeight - 60)}px`;
}

function legend() {
  const place = document.getElementById("legend");
  place.replaceChildren();
  for (const look of Object.keys(WORDS).filter((word) => data.some((one) => one.looks.includes(word)))) {
    const item = el("li"), canvas = el("canvas", "", { width: "14", height: "12", "aria-hidden": "true" }), context = canvas.getContext("2d");
    context.fillStyle = fill(context, look);
    context.fillRect(0, 0, 14, 12);
    item.append(canvas, WORDS[look]);
    place.append(item);
  }
}

function theme(name) {
  root.dataset.theme = name;
  document.getElementById("theme").setAttribute("aria-pressed", String(name === "dark"));
  legend();
  draw();
}

function listen() {
  const place = document.getElementById("timelines");
  let grabbed = null;
  place.addEventListener("pointerdown", (event) => { grabbed = { x: event.clientX, from: view.from, to: view.to }; });
  window.addEventListener("pointerup", () => { grabbed = null; });
  window.addEventListener("pointermove", (event) => {
    if (!grabbed || !data.length) return;
    const moved = (grabbed.x - event.clientX) * (grabbed.to - grabbed.from) / (data[0].canvas.getBoundingClientRect().width - NAMES);
    change(grabbed.from + moved, grabbed.to + moved);
  });
  place.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = data[0].canvas.getBoundingClientRect(), part = (event.clientX - box.left - NAMES) / (box.width - NAMES);
    zoom(event.deltaY < 0 ? 0.8 : 1.25, view.from + part * (view.to - view.from));
  }, { passive: false });
  window.addEventListener("keydown", (event) => {
    const action = KEYS[event.key] ?? KEYS[event.key.toLowerCase()];
    if (event.ctrlKey || event.metaKey || event.altKey || !action || event.target.closest(".scroll")) return;
    event.preventDefault();
    ACTIONS[action]();
  });
  document.querySelectorAll("[data-do]").forEach((button) => button.addEventListener("click", () => ACTIONS[button.dataset.do]()));
  document.getElementById("theme").addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));
  window.addEventListener("resize", draw);
}

words();
captures();
listen();
root.dataset.theme = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
if (data.length) fit();
theme(root.dataset.theme);
root.dataset.ready = "";
