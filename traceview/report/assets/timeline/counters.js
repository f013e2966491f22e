// Rows of counters: a step line, filled to the mean; a pale part shows the highest value where steps are merged.
import { cssColour } from "../core/palette.js";
import { bytesText } from "../core/words.js";
import { view } from "./state.js";

function scaled(row, marks, name, i) {
  return (marks[name]?.[i] ?? 0) / row.counter.scale;
}

function stepValues(row, marks, i) {
  const mean = scaled(row, marks, "value", i);
  return marks.low || marks.high
    ? { mean, low: scaled(row, marks, "low", i), high: scaled(row, marks, "high", i) }
    : { mean, low: mean, high: mean };
}

// The axis of a row and its highest value: 0 to 100%, or to the next of 1, 2, 5, 10 ... of its unit.
export function counterRange(row, marks) {
  let [low, most] = [0, 0];
  for (let i = 0; i < marks.n; i++) {
    const step = stepValues(row, marks, i);
    low = Math.min(low, step.low);
    most = Math.max(most, step.high);
  }
  const power = 10 ** Math.floor(Math.log10(most || 1)),
    round = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= most) ?? most;
  return { low, most, high: row.counter.unit === "%" ? Math.max(100, most) : round };
}

const DIGITS = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

export function counterText(row, value) {
  if (row.counter.unit === "bytes") return bytesText(value);
  return DIGITS.format(value) + (row.counter.unit === "%" ? "%" : row.counter.unit ? ` ${row.counter.unit}` : "");
}

export function counterFacts(row, marks, i) {
  const { mean, low, high } = stepValues(row, marks, i);
  if (low === high) return [["value", counterText(row, mean)]];
  return [
    ["mean", counterText(row, mean)],
    ["lowest, highest", `${counterText(row, low)}, ${counterText(row, high)}`],
  ];
}

// One path for all steps: the cost depends on the pixels of the row only.
export function drawCounter(context, { item, y, h }, marks, first, last) {
  const range = (item.range ??= counterRange(item, marks)),
    each = (view.to - view.from) / view.width,
    height = (value) => ((value - range.low) / (range.high - range.low || 1)) * h;
  const paths = { mean: new Path2D(), high: new Path2D() };
  for (let i = first; i < last; ) {
    const left = Math.max(0, (marks.start[i] - view.from) / each);
    let { mean, high } = stepValues(item, marks, i),
      sum = mean,
      count = 1;
    const pixel = Math.floor(left) + 1;
    while (++i < last && (marks.start[i] - view.from) / each < pixel) {
      const step = stepValues(item, marks, i);
      high = Math.max(high, step.high);
      sum += step.mean;
      count++;
    }
    mean = sum / count;
    const right = Math.min(view.width, (marks.end[i - 1] - view.from) / each),
      wide = Math.max(1, right - left);
    paths.mean.rect(left, y + h - height(mean), wide, height(mean));
    paths.high.rect(left, y + h - height(high), wide, height(high) - height(mean));
  }
  context.fillStyle = cssColour("--counter");
  context.fill(paths.mean);
  context.globalAlpha = 0.35;
  context.fill(paths.high);
  context.globalAlpha = 1;
}
