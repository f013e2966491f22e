// The hands: wheel, drag, double click, keys and buttons.
const MOVES = {
  w: () => zoom(0.7), ArrowUp: () => zoom(0.7), "+": () => zoom(0.7), "=": () => zoom(0.7),
  s: () => zoom(1 / 0.7), ArrowDown: () => zoom(1 / 0.7), "-": () => zoom(1 / 0.7),
  a: () => pan(-0.2), ArrowLeft: () => pan(-0.2),
  d: () => pan(0.2), ArrowRight: () => pan(0.2),
  Home: fit, f: fit, 0: fit,
  PageUp: () => scrollRows(-0.8), PageDown: () => scrollRows(0.8),
  Escape: clearLit,
};
const BUTTONS = { left: "a", right: "d", in: "w", out: "s", fit: "f" };

function scrollRows(share) {
  byId("scroll").scrollTop += share * view.height;
}

function momentAt(event) {
  const box = byId("canvas").getBoundingClientRect();
  return view.from + ((event.clientX - box.left) / box.width) * (view.to - view.from);
}

function watchHands() {
  const stage = byId("stage");
  stage.addEventListener("wheel", (event) => {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 200 : 1;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(((event.deltaX || event.deltaY) * unit) / view.width);
    else zoom(Math.exp(Math.max(-300, Math.min(300, event.deltaY * unit)) * 0.0022), momentAt(event));
  }, { passive: false });
  stage.addEventListener("dblclick", fit);
  watchDrag(stage);
  document.addEventListener("keydown", pressed);
  byId("scroll").addEventListener("scroll", schedule);
  for (const button of document.querySelectorAll("[data-move]"))
    button.addEventListener("click", () => MOVES[BUTTONS[button.dataset.move]]());
  new ResizeObserver(() => rebuild()).observe(byId("frame"));
}

function watchDrag(stage) {
  let last = null;
  stage.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    last = event;
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => {
    if (!last) return;
    const each = (view.to - view.from) / view.width;
    setView(view.from - (event.clientX - last.clientX) * each, view.to - (event.clientX - last.clientX) * each);
    if (event.pointerType === "mouse") byId("scroll").scrollTop -= event.clientY - last.clientY;
    last = event;
  });
  for (const name of ["pointerup", "pointercancel"]) stage.addEventListener(name, () => { last = null; });
}

// W A S D work wherever the person is; the arrows and the rest belong to the timeline while it has the focus.
function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  if (event.key === "/") {
    event.preventDefault();
    byId("search").focus();
    return;
  }
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const anywhere = "wasd".includes(key) || key === "Escape";
  if (!(key in MOVES) || !(anywhere || byId("stage") === document.activeElement)) return;
  event.preventDefault();
  MOVES[key]();
}
