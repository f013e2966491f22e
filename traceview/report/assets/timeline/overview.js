// The strip above the timeline: the whole capture at a glance, and the part of it in view. A drag moves the view.
import { firstAbove } from "../core/columns.js";
import { byId, context2d, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { cssColour } from "../core/palette.js";
import { marksIn } from "./levels.js";
import { drawLinkedStrip } from "./linked.js";
import { allRows } from "./rows.js";
import { linked, view } from "./state.js";
import { afterRedraw, setView } from "./view.js";

const HEIGHT = 22;

/**
 * The strip without the view, what is linked in it, and what both were drawn for.
 * @type {{ picture: HTMLCanvasElement | null, links: HTMLCanvasElement | null, key: string, rows: object | null }}
 */
const overview = { picture: null, links: null, key: "", rows: null };

// The share of each pixel in which any of the lanes' marks lie, by the look of the marks.
function pixelShares(wide) {
  const [start, end] = view.whole,
    scale = wide / (end - start),
    shares = new Map();
  for (const row of allRows().filter(({ kind }) => kind === "overlap"))
    for (const lane of row.lanes) {
      const marks = marksIn(lane.levels[0] ?? lane.exact);
      for (let i = marks ? firstAbove(marks.reach, start) : 0; marks && i < marks.n; i++) {
        const from = (marks.start[i] - start) * scale,
          to = (marks.end[i] - start) * scale,
          busy = marks.busyOf ? marks.busyOf(i) / (marks.end[i] - marks.start[i] || 1) : 1;
        let share = shares.get(marks.look[i]);
        if (!share) shares.set(marks.look[i], (share = new Float64Array(wide + 1)));
        for (let at = from | 0; at < to && at < wide; at++)
          share[at] += (Math.min(to, at + 1) - Math.max(from, at)) * busy;
      }
    }
  return shares;
}

function drawPicture(wide, tall) {
  const canvas = el("canvas", { width: wide, height: tall }),
    pen = context2d(canvas),
    devices = Math.max(1, page.devices.length),
    below = new Float64Array(wide + 1);
  for (const [look, share] of pixelShares(wide)) {
    pen.fillStyle = cssColour("--" + page.looks[look]);
    for (let x = 0; x < wide; x++) {
      const high = Math.min(tall - below[x], (share[x] / devices) * tall);
      if (high > 0) pen.fillRect(x, tall - below[x] - high, 1, high);
      below[x] += Math.max(0, high);
    }
  }
  return canvas;
}

function drawOverview() {
  const canvas = byId("overview", HTMLCanvasElement),
    ratio = devicePixelRatio || 1,
    wide = Math.round(canvas.clientWidth * ratio),
    tall = Math.round(HEIGHT * ratio);
  if (!wide) return;
  const key = `${wide} ${document.documentElement.dataset.theme} ${cssColour("--compute")}`;
  const [start, end] = view.whole,
    x = (at) => ((at - start) / (end - start)) * wide;
  if (overview.key !== key || overview.rows !== linked.rows) {
    Object.assign(canvas, { width: wide, height: tall });
    const links = el("canvas", { width: wide, height: tall });
    drawLinkedStrip(context2d(links), x, tall / 3);
    Object.assign(overview, { key, rows: linked.rows, picture: drawPicture(wide, tall), links });
  }
  const pen = context2d(canvas),
    from = x(view.from),
    part = Math.max(2 * ratio, x(view.to) - from);
  pen.clearRect(0, 0, wide, tall);
  if (overview.picture) pen.drawImage(overview.picture, 0, 0);
  pen.globalAlpha = 0.65;
  pen.fillStyle = cssColour("--card");
  pen.fillRect(0, 0, from, tall);
  pen.fillRect(from + part, 0, wide, tall);
  pen.globalAlpha = 1;
  if (overview.links) pen.drawImage(overview.links, 0, 0);
  pen.strokeStyle = cssColour("--focus");
  pen.lineWidth = 1.5 * ratio;
  pen.strokeRect(from, 0.75 * ratio, part, tall - 1.5 * ratio);
}

// A press outside the view moves it there; a drag moves it along.
export function watchOverview() {
  const canvas = byId("overview"),
    grip = { at: 0, held: false };
  const moment = (event) => {
    const box = canvas.getBoundingClientRect();
    return view.whole[0] + ((event.clientX - box.left) / box.width) * (view.whole[1] - view.whole[0]);
  };
  const move = (event) => {
    const from = moment(event) - grip.at;
    setView(from, from + view.to - view.from);
  };
  canvas.addEventListener("pointerdown", (event) => {
    const at = moment(event),
      inside = at >= view.from && at <= view.to;
    Object.assign(grip, { held: true, at: inside ? at - view.from : (view.to - view.from) / 2 });
    canvas.setPointerCapture(event.pointerId);
    move(event);
  });
  canvas.addEventListener("pointermove", (event) => grip.held && move(event));
  for (const end of ["pointerup", "pointercancel"])
    canvas.addEventListener(end, () => Object.assign(grip, { held: false }));
  afterRedraw.push(drawOverview);
  drawOverview();
}
