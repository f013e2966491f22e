// Ranks down, iterations across: what each rank's time went to, and the heat map, drawn on one canvas that shows the
// rows in sight. Colours of the heat map are cividis: they ascend in lightness, and look alike to everybody.
const HEAT = [[0, 34, 78], [36, 62, 108], [85, 91, 109], [125, 124, 120], [165, 156, 116], [211, 193, 100], [254, 232, 56]];
const PARTS = [
  { key: "compute", look: "compute", words: "compute" },
  { key: "waiting", look: "d2h", words: "waiting for others in collectives, nothing beside it", pattern: "slashed" },
  { key: "moving", look: "communication", words: "other exposed communication" },
  { key: "copies", look: "copy", words: "exposed copies and memsets", pattern: "checked" },
  { key: "idle", look: "idle_unknown", words: "idle", pattern: "striped" },
];
const FIGURES = {
  own: "own time: wall less exposed communication",
  wait: "waiting in collectives",
  compute: "compute",
  wall: "wall",
};
const ORDERS = {
  slowest: ["slowest first", (rank) => -(rank.lag ?? rank.own)],
  given: ["as given", () => 0],
  waits: ["waits most first", (rank) => -rank.wait],
  caused: ["waited for most first", (rank) => -rank.caused],
};
const AXIS = 22, NAMES = 190, BARS = 250, SPACE = 12, TALLEST = 30, LOWEST = 0.4, HIGH = 600;
const map = { order: [], row: 0, column: 0, height: 18, figure: "own", found: null, image: null };

function orderRanks(name) {
  const by = ORDERS[name][1];
  const chosen = map.order[map.row];
  map.order = content.ranks.map((_, index) => index).sort((a, b) => by(content.ranks[a]) - by(content.ranks[b]) || a - b);
  map.row = Math.max(0, map.order.indexOf(chosen));
  map.image = null;
}

function valueOf(rank, column) {
  return heat[map.figure][rank * heat.columns + column];
}

// The 2nd to the 98th hundredth of all values: one odd iteration must not make all others look alike.
function scaleOf(figure) {
  heat.scale ??= {};
  if (!heat.scale[figure]) {
    const known = Array.from(heat[figure]).filter((value, place) => value >= 0 && heat.steady[place % heat.columns]).sort((a, b) => a - b);
    const at = (share) => known[Math.round(share * (known.length - 1))] ?? 0;
    const low = figure === "wait" ? 0 : at(0.02);
    heat.scale[figure] = [low, Math.max(at(0.98), low + 1)];
  }
  return heat.scale[figure];
}

function colourAt(share) {
  const place = Math.max(0, Math.min(1, share)) * (HEAT.length - 1), low = Math.min(Math.floor(place), HEAT.length - 2), part = place - low;
  return HEAT[low].map((value, i) => Math.round(value + (HEAT[low + 1][i] - value) * part));
}

// One pixel a cell; the canvas stretches it.
function heatImage() {
  if (map.image || !heat.columns) return map.image;
  map.image = el("canvas", { width: heat.columns, height: map.order.length });
  const pen = map.image.getContext("2d"), pixels = pen.createImageData(heat.columns, map.order.length), [low, high] = scaleOf(map.figure);
  map.order.forEach((rank, row) => {
    for (let column = 0; column < heat.columns; column++) {
      const value = valueOf(rank, column), at = 4 * (row * heat.columns + column);
      if (value < 0) continue;
      const [r, g, b] = colourAt((value - low) / (high - low));
      pixels.data.set([r, g, b, heat.steady[column] ? 255 : 110], at);
    }
  });
  pen.putImageData(pixels, 0, 0);
  return map.image;
}

function partsOf(rank) {
  const waiting = Math.min(rank.bare_wait, rank.exposed_communication);
  return { compute: rank.compute, waiting, moving: rank.exposed_communication - waiting, copies: rank.copies, idle: rank.idle };
}

function heatLeft(wide) {
  return Math.min(NAMES + BARS + SPACE, wide * 0.55);
}

function drawMap() {
  const scroll = byId("scroll"), stage = byId("stage"), canvas = byId("canvas"), ratio = devicePixelRatio || 1;
  const whole = AXIS + map.order.length * map.height, high = Math.min(whole, HIGH), wide = scroll.clientWidth;
  scroll.style.height = high + 2 + "px";
  byId("spacer").style.height = whole + "px";
  stage.style.height = canvas.style.height = high + "px";
  canvas.width = Math.round(wide * ratio);
  canvas.height = Math.round(high * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  paint(pen, wide, high, scroll.scrollTop, map.height);
  document.documentElement.dataset.drawn = [map.figure, map.height.toFixed(2), map.row, map.column, Math.round(scroll.scrollTop)].join(" ");
}

function paint(pen, wide, high, top, height) {
  const first = Math.floor(top / height), last = Math.min(map.order.length, Math.ceil((top + high - AXIS) / height)), left = heatLeft(wide);
  pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  pen.textBaseline = "middle";
  pen.fillStyle = css("--card");
  pen.fillRect(0, 0, wide, high);
  pen.save();
  pen.beginPath();
  pen.rect(0, AXIS, wide, high - AXIS);
  pen.clip();
  paintHeat(pen, wide, left, top, height);
  paintBars(pen, left, first, last, top, height);
  paintNames(pen, first, last, top, height);
  paintCursor(pen, wide, left, top, height);
  pen.restore();
  paintAxis(pen, wide, left);
}

function paintHeat(pen, wide, left, top, height) {
  let image = heatImage();
  if (!image) return;
  // Rows lower than a pixel are averaged, columns never.
  if (height < 1) {
    const lower = el("canvas", { width: heat.columns, height: Math.max(1, Math.round(map.order.length * height)) });
    lower.getContext("2d").drawImage(image, 0, 0, lower.width, lower.height);
    image = lower;
  }
  pen.imageSmoothingEnabled = false;
  pen.drawImage(image, left, AXIS - top, wide - left, map.order.length * height);
}

function paintBars(pen, left, first, last, top, height) {
  const room = left - NAMES - SPACE, longest = Math.max(...content.ranks.map((rank) => rank.wall), 1), gap = height > 6 ? 2 : 0;
  const fills = PARTS.map(({ look, pattern }) => [css("--" + look), pattern && height > 6 ? canvasPattern(pen, pattern) : null]);
  const step = Math.max(1, Math.round(1 / height));
  for (let row = first; row < last; row += step) {
    const parts = partsOf(content.ranks[map.order[row]]);
    let x = NAMES;
    const y = AXIS - top + row * height, from = height < 3 ? Math.round(y) : y + gap / 2;
    const high = height < 3 ? Math.max(Math.round(y + step * height) - from, 1) : height - gap;
    PARTS.forEach(({ key }, place) => {
      const length = (parts[key] / longest) * room;
      for (const fill of fills[place].filter(Boolean)) {
        pen.fillStyle = fill;
        pen.fillRect(x, from, length, high);
      }
      x += length;
    });
  }
}

// Names where there is room; of low rows every so many, and always the stragglers and the one that is chosen.
function paintNames(pen, first, last, top, height) {
  const every = Math.max(1, Math.ceil(14 / height));
  const wanted = [...Array(last - first).keys()].map((at) => first + at);
  const rank = (row) => content.ranks[map.order[row]];
  const weight = (row) => (row === map.row ? 3 : rank(row).straggler ? 2 : row % every === 0 ? 1 : 0);
  const taken = [];
  for (const row of wanted.filter(weight).sort((a, b) => weight(b) - weight(a) || a - b)) {
    const y = AXIS - top + (row + 0.5) * height;
    if (taken.some((other) => Math.abs(other - y) < 13) || y < AXIS + 5) continue;
    taken.push(y);
    pen.fillStyle = css(rank(row).straggler ? "--high" : row === map.row ? "--link" : "--ink");
    pen.fillText(short(pen, (rank(row).straggler ? "! " : "") + rank(row).label, NAMES - 16), 8, y);
  }
}

function paintCursor(pen, wide, left, top, height) {
  const y = AXIS - top + map.row * height;
  pen.strokeStyle = css("--mark");
  pen.lineWidth = 2;
  pen.strokeRect(NAMES - 2, y - 1, left - NAMES - SPACE + 4, Math.max(height, 1) + 2);
  if (!heat.columns) return;
  const cell = (wide - left) / heat.columns;
  pen.strokeRect(left + map.column * cell - 1, y - 1, cell + 2, Math.max(height, 1) + 2);
}

function paintAxis(pen, wide, left) {
  pen.fillStyle = css("--soft");
  pen.fillText("rank", 8, AXIS / 2);
  pen.fillText(short(pen, content.each ? "an iteration, mean" : "the whole capture", left - NAMES - SPACE), NAMES, AXIS / 2);
  const cell = (wide - left) / Math.max(heat.columns, 1), every = Math.max(1, Math.ceil(52 / cell));
  for (let column = 0; column < heat.columns; column += every) {
    pen.fillStyle = css("--grid");
    pen.fillRect(left + column * cell, AXIS - 5, 1, 5);
    pen.fillStyle = css("--soft");
    pen.fillText(heat.names[column], left + column * cell + 3, AXIS / 2);
  }
}

function short(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 1 && pen.measureText(text.slice(0, end) + "…").width > room) end -= 1;
  return text.slice(0, end) + "…";
}

// What stands at a place, in words: the same for the pointer, the keyboard and a screen reader.
function wordsAt(row, column) {
  const rank = content.ranks[map.order[row]], lag = rank.lag === null ? "" : `, ${rank.lag < 0 ? "−" : "+"}${milliseconds(Math.abs(rank.lag))} beside the others`;
  const whole = `${rank.label}${rank.straggler ? " (straggler)" : ""}: own ${milliseconds(rank.own)}${lag}, waits ${milliseconds(rank.wait)}, came last to ${percent(rank.last_count, rank.matched)} of its collectives`;
  const idle = content.causes.map((cause, place) => [cause, rank.causes[place]]).filter(([, ns]) => ns).sort((a, b) => b[1] - a[1]).slice(0, 3);
  const why = idle.length ? `. Idle ${milliseconds(rank.idle)}: ${idle.map(([cause, ns]) => `${cause.replace("_", " ")} ${milliseconds(ns)}`).join(", ")}` : "";
  if (column === null || !heat.columns) return whole + why;
  const at = (figure) => heat[figure][map.order[row] * heat.columns + column];
  if (at("wall") < 0) return `${whole}${why}. Iteration ${heat.names[column]}: not in this capture`;
  const cell = Object.keys(FIGURES).map((figure) => `${figure} ${milliseconds(at(figure))}`).join(", ");
  return `${whole}${why}. Iteration ${heat.names[column]}${heat.steady[column] ? "" : " (set aside)"}: ${cell}`;
}
