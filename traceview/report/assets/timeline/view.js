// What stretch of time shows, and when it is drawn.
const NARROWEST = 20, AXIS = 28; // ns, pixels
const view = { from: 0, to: 1, whole: [0, 1], lit: null, box: null, pending: false, width: 0, height: 0, frames: 0 };

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
  const ratio = devicePixelRatio || 1, began = performance.now();
  const context = byId("canvas").getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawRows(context, { ...view, top: byId("scroll").scrollTop });
  drawAxis();
  byId("range").textContent = `${duration(view.to - view.from)} from ${moment(Math.max(0, view.from))}`;
  view.frames++;
  view.took = performance.now() - began;
  askLive();
  writeAddress();
}

function sizeCanvas(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
}

// After a change of size, theme or rows.
async function rebuild() {
  const scroll = byId("scroll");
  placeRows();
  showLabels(rebuild);
  // No taller than its rows, and not so tall that they push the rest off the screen.
  byId("frame").style.height = Math.min(board.height + scroll.offsetTop + 2, Math.max(300, innerHeight * 0.5)) + "px";
  view.height = scroll.clientHeight;
  view.width = Math.max(50, Math.floor(scroll.clientWidth - byId("labels").offsetWidth));
  byId("stage").style.height = view.height + "px";
  sizeCanvas(byId("canvas"), view.width, view.height);
  sizeCanvas(byId("axis"), view.width, AXIS);
  readPalette(page.looks, byId("canvas").getContext("2d"));
  redraw();
}

// Go to a place: the stretch with as much again on both sides, lit, its row in sight.
async function goTo(place, button) {
  const length = Math.max(place.end - place.start, 500);
  view.lit = place;
  setView(place.start - length, place.end + length);
  document.querySelectorAll("[aria-current]").forEach((one) => one.removeAttribute("aria-current"));
  button?.setAttribute("aria-current", "true");
  await bringInSight(place.rows);
  for (const item of board.shown) item.labelElement?.classList.toggle("lit", place.rows.includes(item.id));
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  byId("timeline").scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
}

// Unfold what hides the rows, and scroll to the first of them.
async function bringInSight(ids) {
  const rows = ids.map(revealed).filter(Boolean);
  await rebuild();
  if (!rows.length) return;
  const { y, h } = rows[0].row, scroll = byId("scroll");
  if (y < scroll.scrollTop || y + h > scroll.scrollTop + view.height) scroll.scrollTop = Math.max(0, y - view.height / 3);
}

function clearLit() {
  view.lit = null;
  clearSelected();
  clearMeasure();
  document.querySelectorAll("[aria-current]").forEach((one) => one.removeAttribute("aria-current"));
  rebuild();
}
