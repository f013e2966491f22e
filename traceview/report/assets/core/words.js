// Figures as text: three significant digits and the unit that fits, by the rules of traceview/model/units.py.
// tests/units.json holds examples for both.

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const EXACT = new Intl.NumberFormat("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 6 });

/** Units, each a thousandth of the one before. @type {(most: number, ...units: string[]) => import("../types").Scales} */
const scales = (most, ...units) => units.map((unit, at) => [most / 1e3 ** at, unit]);
export const TIMES = scales(1e9, "s", "ms", "µs", "ns");
export const SIZES = scales(1e12, "TB", "GB", "MB", "kB", "B");
export const RATES = scales(1e3, "TB/s", "GB/s", "MB/s", "kB/s"); // bytes per ns
const OPERATIONS = scales(1e15, "PFLOP", "TFLOP", "GFLOP", "MFLOP", "kFLOP", "FLOP");
const WHOLE_UNITS = ["ns", "B", "FLOP"];
const ROUND_UP = 1 + 1e-12;

// A length of time: 780 ns, 12.0 µs, 331 ms, 7.17 s.
export function duration(ns) {
  return ns ? withUnit(ns, TIMES) : "0 ms";
}

// Both ends of a range of times, the unit once if they share it: 28.1 to 11.5 ms.
export function timeRange(from, to, between = " to ") {
  const [first, last] = [duration(from), duration(to)];
  const unit = last.slice(last.indexOf(" "));
  return (first.endsWith(unit) ? first.slice(0, -unit.length) : first) + between + last;
}

// A time with all its digits: 30.000125 ms.
export function momentText(ns) {
  const rounded = Math.round(ns);
  if (!rounded) return "0 ms";
  const [scale, unit] = scaleFor(rounded, TIMES);
  return `${(rounded / scale).toLocaleString("en-US", { maximumFractionDigits: Math.round(Math.log10(scale)) })} ${unit}`;
}

export function bytesText(bytes) {
  return withUnit(bytes, SIZES);
}

export function bandwidth(bytes, ns) {
  return ns ? withUnit(bytes / ns, RATES) : "-";
}

// A number of floating-point operations: 7.21 TFLOP.
export function operations(count) {
  return withUnit(count, OPERATIONS);
}

// A share: 12.3%, 100%, <0.1%; - where the whole is 0.
export function percent(part, whole) {
  if (!whole) return "-";
  const share = (100 * part) / whole;
  if (share && Math.abs(share) < 0.05) return share > 0 ? "<0.1%" : ">-0.1%";
  return fixed(share, share && Math.abs(share) < 99.95 ? 1 : 0) + "%";
}

// A share with a sign before it; "<0.1%" stands alone.
export function signedPercent(sign, part, whole) {
  const text = percent(part, whole);
  return text.startsWith("<") ? text : sign + text;
}

// A number without a unit: 1.00, 12.4, 1,312.
export function ratio(value) {
  return fixed(value, decimals(value));
}

export function countText(number) {
  return WHOLE.format(number);
}

/**
 * The texts of a table column: one unit and one number of decimals, unless the smallest figure would have fewer than two digits.
 *
 * @param {(number | string | null)[]} values numbers; null or "" where they are unknown
 * @param {import("../types").Scales} scales
 */
export function columnTexts(values, scales) {
  const lengths = values.map((value) => Math.abs(Number(value))).filter(Boolean);
  const [most, least] = [Math.max(...lengths), Math.min(...lengths)];
  const [scale, unit] = lengths.length
    ? scaleFor(most, scales)
    : [1, scales === TIMES ? "ms" : scales[scales.length - 1][1]];
  const whole = WHOLE_UNITS.includes(unit);
  let digits = whole ? 0 : decimals(most / scale);
  const coarse = () => !whole && (least / scale) * 10 ** digits < 9.5;
  if (coarse()) digits++;
  const each = coarse();
  return values.map((value) => {
    if (value === null || value === "") return "-";
    if (!Number(value)) return `0 ${unit}`;
    return each ? withUnit(Number(value), scales) : `${fixed(Number(value) / scale, digits)} ${unit}`;
  });
}

function withUnit(value, scales) {
  const [scale, unit] = scaleFor(value, scales);
  return `${WHOLE_UNITS.includes(unit) ? value.toFixed(0) : ratio(value / scale)} ${unit}`;
}

// The largest unit in which a value is at least 1 with three digits; else the smallest.
function scaleFor(value, scales) {
  return scales.find(([scale]) => Math.abs(value) >= 0.9995 * scale) ?? scales[scales.length - 1];
}

function decimals(value) {
  return Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2;
}

function fixed(value, digits) {
  const text = (value * ROUND_UP).toFixed(digits);
  return Math.abs(value) < 1000 ? text : text.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

const MAX_NUMBER = 6; // digits at the end of a name that stay together: "it…17" of "iteration 17"

// A text of at most so many letters, with … in its middle: similar names differ at both ends.
export function middle(text, letters) {
  if (text.length <= letters) return text;
  const digits = text.match(/\d+$/)?.[0].length ?? 0;
  const tail = Math.min(letters - 1, Math.max(letters - 1 - Math.floor(letters / 2), digits > MAX_NUMBER ? 0 : digits));
  const head = letters - 1 - tail;
  return text.slice(0, head) + "…" + (tail > 0 ? text.slice(-tail) : "");
}

// The longest form of a text that fits into `room` pixels of a canvas.
export function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let [low, high] = [1, text.length];
  while (low + 1 < high) {
    const letters = (low + high) >> 1;
    if (context.measureText(middle(text, letters)).width <= room) low = letters;
    else high = letters;
  }
  return middle(text, low);
}

// The part of an iteration, or of the run, that the remedy saves; all parts have the base that `page.answer_basis` names.
export function gainShare({ gain }) {
  if (gain.source === "none") return "?";
  return signedPercent(gain.at_most ? "≤ " : "−", gain.fraction, 1);
}
