// Order of the ranks, figures of the heat map and their colours: cividis, whose lightness ascends and which reads alike
// with colour blindness.
import { context2d, el } from "../core/dom.js";
import { content, heat, map } from "./state.js";

const HEAT = [0, 34, 78, 36, 62, 108, 85, 91, 109, 125, 124, 120, 165, 156, 116, 211, 193, 100, 254, 232, 56]; // red, green and blue in turn

export const FIGURES = {
  own: "own time: wall time minus exposed communication",
  wait: "waiting in collectives",
  compute: "compute",
  wall: "wall time",
};

export const ORDERS = {
  slowest: ["slowest first", (rank) => -(rank.lag ?? rank.own)],
  given: ["input order", () => 0],
  waits: ["longest wait first", (rank) => -rank.wait],
  caused: ["largest delay of others first", (rank) => -rank.caused],
};

export function sortRanks(name) {
  const by = ORDERS[name][1];
  const chosen = map.order[map.row];
  map.order = content.ranks
    .map((_, index) => index)
    .sort((a, b) => by(content.ranks[a]) - by(content.ranks[b]) || a - b);
  map.row = Math.max(0, map.order.indexOf(chosen));
  map.image = null;
}

function heatValue(rank, column) {
  return heat[map.figure]?.[rank * heat.columns + column] ?? -1;
}

// The 2nd to 98th percentile of all values, so that one outlier does not make all others look alike; at least a
// twentieth of the median, so that noise does not look like a straggler.
export function colourScale(figure) {
  if (!heat.scale[figure]) {
    const known = Array.from(heat[figure])
      .filter((value, place) => value >= 0 && heat.steady[place % heat.columns])
      .sort((a, b) => a - b);
    const at = (share) => known[Math.round(share * (known.length - 1))] ?? 0;
    const low = figure === "wait" ? 0 : at(0.02);
    heat.scale[figure] = [low, Math.max(at(0.98), at(0.5) * 1.05, low + 1)];
  }
  return heat.scale[figure];
}

export function heatColour(share) {
  const place = Math.max(0, Math.min(1, share)) * (HEAT.length / 3 - 1),
    low = 3 * Math.min(Math.floor(place), HEAT.length / 3 - 2),
    part = place - low / 3;
  return [0, 1, 2].map((i) => Math.round(HEAT[low + i] + (HEAT[low + 3 + i] - HEAT[low + i]) * part));
}

// One pixel per cell; the canvas stretches it.
export function heatImage() {
  if (map.image || !heat.columns) return map.image;
  map.image = el("canvas", { width: heat.columns, height: map.order.length });
  const pen = context2d(map.image),
    pixels = pen.createImageData(heat.columns, map.order.length),
    [low, high] = colourScale(map.figure);
  map.order.forEach((rank, row) => {
    for (let column = 0; column < heat.columns; column++) {
      const value = heatValue(rank, column),
        at = 4 * (row * heat.columns + column);
      if (value < 0) continue;
      const [r, g, b] = heatColour((value - low) / (high - low));
      pixels.data.set([r, g, b, heat.steady[column] ? 255 : 110], at);
    }
  });
  pen.putImageData(pixels, 0, 0);
  return map.image;
}
