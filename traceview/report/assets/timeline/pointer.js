// Mouse and wheel of the timeline.
import { byId } from "../core/dom.js";
import { isSideways, watchWheel, wheelPixels } from "../core/wheel.js";
import { followArea, showArea } from "./area.js";
import { toX } from "./axis.js";
import { watchHeight } from "./height.js";
import { hitAt } from "./hover.js";
import { fitSelected } from "./keys.js";
import { drawLinked } from "./linked.js";
import { overlays } from "./overlay.js";
import { contentY } from "./rows.js";
import { select } from "./select.js";
import { area, board, pointer, view } from "./state.js";
import { afterRedraw, fit, pan, rebuild, schedule, settle, setView, zoom } from "./view.js";

const GRIP = 5; // pixels around an end of the area

function momentAt(event) {
  const box = byId("canvas").getBoundingClientRect();
  return view.from + ((event.clientX - box.left) / box.width) * (view.to - view.from);
}

export function watchPointer() {
  const stage = byId("stage");
  watchWheel(byId("frame"), onWheel, (held) => {
    byId("corner").textContent = held ? "wheel zooms · drag pans" : "";
  });
  stage.addEventListener("dblclick", (event) => (hitAt(event) ? fitSelected() : fit()));
  for (const area of [stage, byId("axis")]) {
    area.addEventListener("pointerdown", (event) => onPress(event, area !== stage || event.shiftKey));
    area.addEventListener("pointermove", onDrag);
    area.addEventListener("pointerup", (event) => onRelease(event, area === stage));
    area.addEventListener("pointercancel", () => Object.assign(pointer, { last: null }));
  }
  stage.addEventListener("pointermove", (event) => {
    stage.style.cursor = otherEnd(event) === null ? "" : "col-resize";
    pointer.over = event;
    pointer.x = momentAt(event);
    followArea(pointer.x);
  });
  overlays.push(drawLinked);
  afterRedraw.push(settle, () => {
    if (pointer.over) pointer.x = momentAt(pointer.over);
  });
  stage.addEventListener("pointerleave", () => {
    Object.assign(pointer, { x: null, over: null });
  });
  byId("scroll").addEventListener("scroll", schedule);
  watchHeight(rebuild);
  new ResizeObserver(rebuild).observe(byId("frame"));
}

function onWheel(event) {
  if (!event.target.closest("#stage, #axis")) return false;
  if (isSideways(event)) return pan(wheelPixels(event, event.deltaX || event.deltaY) / view.width);
  zoom(Math.exp(Math.max(-300, Math.min(300, wheelPixels(event, event.deltaY))) * 0.0022), momentAt(event));
}

// The other end of the area where the pointer is at one of its ends.
function otherEnd(event) {
  const { left } = byId("canvas").getBoundingClientRect();
  const at = area.result ? area.points.findIndex((end) => Math.abs(toX(end) - event.clientX + left) <= GRIP) : -1;
  return at < 0 ? null : area.points[1 - at];
}

function onPress(event, selects) {
  if (event.button !== 0) return;
  const fixed = otherEnd(event);
  Object.assign(pointer, { last: event, from: event, moved: false, selects: selects || fixed !== null, fixed });
  event.currentTarget.setPointerCapture(event.pointerId);
}

function onDrag(event) {
  const { last, from } = pointer;
  if (!last || !from) return;
  pointer.moved ||= Math.hypot(event.clientX - from.clientX, event.clientY - from.clientY) > 3;
  if (!pointer.moved) return;
  pointer.last = event;
  if (pointer.selects) return dragArea(from, event);
  const each = (view.to - view.from) / view.width,
    shift = (event.clientX - last.clientX) * each;
  setView(view.from - shift, view.to - shift);
  if (event.pointerType === "mouse") byId("scroll").scrollTop -= event.clientY - last.clientY;
}

// A drag on an end of the area moves it, a drag on the ruler selects all rows, a drag on the rows those that it crosses.
function dragArea(from, event) {
  const { top } = byId("canvas").getBoundingClientRect(),
    { scrollTop } = byId("scroll");
  const [low, high] = [from, event].map(({ clientY }) => contentY(clientY - top, scrollTop)).sort((a, b) => a - b);
  const crossed = board.shown.filter((item) => item.lanes && !item.summary && item.y < high && item.y + item.h > low);
  const rows =
    from.currentTarget === byId("axis") || event.currentTarget === byId("axis") ? null : crossed.map((item) => item.id);
  if (pointer.fixed !== null) Object.assign(area, { points: [pointer.fixed, momentAt(event)], result: null });
  else Object.assign(area, { points: [momentAt(from), momentAt(event)], rows, moving: false, result: null });
  schedule();
}

function onRelease(event, onStage) {
  const { last, moved, selects } = pointer;
  pointer.last = null;
  if (last && moved && selects) showArea(area.points, area.rows);
  if (last && !moved && onStage) select(hitAt(event));
  schedule();
}
