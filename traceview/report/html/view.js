// What stretch of time shows, and what draws it: Plotly the axis, the grid and the highlight, a canvas the marks.
const NARROWEST = 20; // ns
const view = { from: 0, to: 1, whole: [0, 1], lit: null, pending: false, width: 0, height: 0, frames: 0 };

function startView(span) {
  // A little air on both sides keeps the first and the last event off the edge.
  const air = Math.max(1, (span[1] - span[0]) * 0.005);
  view.whole = [span[0] - air, span[1] + air];
  [view.from, view.to] = view.whole;
}

function setView(from, to) {
  const most = view.whole[1] - view.whole[0];
  const length = Math.min(most, Math.max(NARROWEST, to - from));
  const middle = (from + to) / 2;
  view.from = Math.min(Math.max(middle - length / 2, view.whole[0]), view.whole[1] - length);
  view.to = view.from + length;
  schedule();
}

// Zoom by a factor about a moment, which stays where it is on the screen.
function zoom(factor, about = (view.from + view.to) / 2) {
  const length = view.to - view.from;
  const wanted = Math.min(Math.max(length * factor, NARROWEST), view.whole[1] - view.whole[0]);
  const from = about - ((about - view.from) * wanted) / length;
  setView(from, from + wanted);
}

function pan(share) {
  const shift = (view.to - view.from) * share;
  setView(view.from + shift, view.to + shift);
}

function fit() {
  setView(...view.whole);
}

function schedule() {
  if (view.pending) return;
  view.pending = true;
  requestAnimationFrame(() => {
    view.pending = false;
    redraw();
  });
}

function redraw() {
  const ratio = devicePixelRatio || 1;
  const context = byId("canvas").getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawRows(context, { ...view, top: byId("scroll").scrollTop });
  Plotly.relayout(byId("plot"), { "xaxis.range": [view.from / 1e9, view.to / 1e9] });
  byId("range").textContent = `${duration(view.to - view.from)} from ${moment(Math.max(0, view.from))}`;
  view.frames++;
}

function axisLayout() {
  return {
    width: view.width, height: view.height + byId("scroll").offsetTop, showlegend: false,
    margin: { l: 0, r: 0, t: byId("scroll").offsetTop, b: 0 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 11.5, color: css("--soft") },
    xaxis: {
      side: "top", range: [view.from / 1e9, view.to / 1e9], fixedrange: true, nticks: Math.max(3, Math.round(view.width / 130)),
      tickformat: "~s", ticksuffix: "s", tickangle: 0, ticks: "outside", ticklen: 4, gridcolor: css("--grid"),
      tickcolor: css("--line"), zeroline: false, showgrid: true,
    },
    yaxis: { visible: false, fixedrange: true, range: [0, 1] },
    shapes: litShapes(),
  };
}

function litShapes() {
  if (!view.lit) return [];
  return [{
    type: "rect", xref: "x", yref: "paper", x0: view.lit.start / 1e9, x1: view.lit.end / 1e9, y0: 0, y1: 1,
    fillcolor: css("--glow"), opacity: 0.28, line: { width: 1, color: css("--glow") }, layer: "below",
  }];
}

// After a change of size, theme or rows.
async function rebuild() {
  const stage = byId("stage"), canvas = byId("canvas"), scroll = byId("scroll");
  placeRows();
  showLabels(rebuild);
  // No taller than its rows, and not so tall that they push the rest off the screen.
  byId("frame").style.height = Math.min(board.height + scroll.offsetTop + 2, Math.max(300, innerHeight * 0.5)) + "px";
  view.height = scroll.clientHeight;
  view.width = Math.max(50, Math.floor(scroll.clientWidth - byId("labels").offsetWidth));
  const ratio = devicePixelRatio || 1;
  stage.style.height = view.height + "px";
  canvas.width = Math.round(view.width * ratio);
  canvas.height = Math.round(view.height * ratio);
  canvas.style.width = view.width + "px";
  canvas.style.height = view.height + "px";
  readPalette(page.looks, canvas.getContext("2d"));
  await Plotly.react(byId("plot"), [], axisLayout(), { staticPlot: true, displayModeBar: false });
  redraw();
}

// Go to a place: the stretch with as much again on both sides, lit, its row in sight.
async function goTo(place, button) {
  const length = Math.max(place.end - place.start, 500);
  view.lit = place;
  let hidden = false;
  const rows = place.rows.map(revealed).filter(Boolean);
  for (const found of rows) hidden ||= found.hidden;
  setView(place.start - length, place.end + length);
  document.querySelectorAll("[aria-current]").forEach((one) => one.removeAttribute("aria-current"));
  button?.setAttribute("aria-current", "true");
  await rebuild();
  if (rows.length) {
    const { y, h } = rows[0].row, scroll = byId("scroll");
    if (y < scroll.scrollTop || y + h > scroll.scrollTop + view.height) scroll.scrollTop = Math.max(0, y - view.height / 3);
  }
  for (const item of board.shown) item.labelElement?.classList.toggle("lit", place.rows.includes(item.id));
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  byId("timeline").scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
}

function clearLit() {
  view.lit = null;
  document.querySelectorAll("[aria-current]").forEach((one) => one.removeAttribute("aria-current"));
  rebuild();
}
