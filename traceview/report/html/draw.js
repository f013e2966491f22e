// Marks on a canvas, at the resolution of the screen: what is narrower than a pixel is added up into it.
const MIN_TEXT = 34;
const drawn = { marks: 0 };

function drawRows(context, state) {
  const { width, height, top, from, to } = state;
  context.clearRect(0, 0, width, height);
  context.font = '11px system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
  context.textBaseline = "middle";
  drawn.marks = 0;
  const scale = { from, to, pixels: width / (to - from), width };
  for (const item of board.shown) {
    const y = item.y - top;
    if (y + item.h < 0 || y > height) continue;
    drawBackground(context, item, y, width);
    if (!item.marks) continue;
    const lane = (item.h - 3) / item.lanes.length;
    item.lanes.forEach((marks, place) => {
      const box = { y: Math.round(y + 1 + place * lane), h: Math.max(2, Math.round(lane - (item.lanes.length > 1 ? 2 : 1))) };
      drawLane(context, item.kind, marks, box, scale);
    });
  }
  if (state.lit) drawLit(context, state, scale);
}

function drawBackground(context, item, y, width) {
  if (item.kind === "group") {
    context.fillStyle = css("--sunk");
    context.fillRect(0, y, width, item.h);
  }
  context.fillStyle = css(item.kind === "group" ? "--line" : "--grid");
  context.fillRect(0, Math.round(y), width, 1);
}

function drawLane(context, kind, marks, box, scale) {
  const { from, to, pixels, width } = scale;
  const first = above(marks.reach, from), last = above(marks.start, to);
  const thin = new Float64Array(width + 1), widest = new Float64Array(width + 1), look = new Int16Array(width + 1).fill(-1);
  for (let i = first; i < last; i++) {
    const x = (marks.start[i] - from) * pixels, w = (marks.end[i] - marks.start[i]) * pixels;
    if (w >= 1) {
      if (x + w > 0) drawMark(context, kind, marks, i, x, w, box, width);
      continue;
    }
    const at = x | 0;
    if (x < 0) continue;
    thin[at] += marks.busy ? marks.busy[i] * pixels : w;
    if (w >= widest[at]) { widest[at] = w; look[at] = kind === "range" ? marks.name[i] % RANGE_COLOURS : marks.look[i]; }
  }
  drawThin(context, kind, thin, look, box, width);
}

// Never so weak that a lone short event is lost.
function strengthOf(full) {
  return full > 0.6 ? 1 : full > 0.25 ? 0.86 : 0.72;
}

// A pixel that holds several marks takes the colour of the longest; how full it is, is its strength.
function drawThin(context, kind, thin, look, box, width) {
  const fills = kind === "range" ? palette.range : palette.fill;
  for (let at = 0; at < width; at++) {
    if (look[at] < 0) continue;
    const strength = strengthOf(thin[at]);
    let until = at + 1;
    while (until < width && look[until] === look[at] && strengthOf(thin[until]) === strength) until++;
    context.globalAlpha = strength;
    context.fillStyle = fills[look[at]];
    context.fillRect(at, box.y, until - at, box.h);
    drawn.marks += until - at;
    at = until - 1;
  }
  context.globalAlpha = 1;
}

function drawMark(context, kind, marks, i, x, w, box, width) {
  const left = Math.max(Math.round(x), -2), right = Math.min(Math.max(Math.round(x + w), Math.round(x) + 1), width + 2);
  const wide = Math.max(1, right - left - (w > 5 ? 1 : 0));
  const range = kind === "range", look = marks.look[i], tint = marks.name[i] % RANGE_COLOURS;
  const several = marks.count ? marks.count[i] : 1;
  context.globalAlpha = several > 1 ? Math.min(0.9, Math.max(0.35, marks.busy[i] / (marks.end[i] - marks.start[i]))) : 1;
  context.fillStyle = range ? palette.range[tint] : palette.fill[look];
  context.fillRect(left, box.y, wide, box.h);
  context.globalAlpha = 1;
  if (!range && wide > 5 && palette.pattern[look]) {
    context.fillStyle = palette.pattern[look];
    context.fillRect(left, box.y, wide, box.h);
  }
  drawn.marks++;
  if (wide > MIN_TEXT && box.h > 11)
    drawText(context, textOf(kind, marks, i, several), Math.max(left, 0), Math.min(right, width), box, range ? palette.rangeInk[tint] : palette.ink[look]);
}

function textOf(kind, marks, i, several) {
  if (several > 1) return `${count(several)} events`;
  if (kind === "idle") return lookWord(page.looks[marks.look[i]]).slice(6);
  return page.names[marks.name[i]];
}

function drawText(context, text, left, right, box, ink) {
  const letters = Math.floor((right - left - 8) / 6.1);
  if (letters < 3) return;
  context.fillStyle = ink;
  const cut = text.length > letters ? text.slice(0, letters - 1) + "…" : text;
  context.fillText(cut, left + 4, box.y + box.h / 2 + 0.5, right - left - 6);
}

function drawLit(context, state, scale) {
  const x = (state.lit.start - scale.from) * scale.pixels, w = Math.max(2, (state.lit.end - state.lit.start) * scale.pixels);
  context.strokeStyle = css("--mark");
  context.lineWidth = 2;
  for (const item of board.shown)
    if (state.lit.rows.includes(item.id)) context.strokeRect(x - 1, item.y - state.top + 1, w + 2, item.h - 2);
}
