// Figures as text, in the same forms as report/format.py.
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const EXACT = new Intl.NumberFormat("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 6 });

export function milliseconds(ns) {
  const value = ns / 1e6,
    seconds = value / 1000;
  if (Math.abs(value) >= 999.95)
    return (
      (Math.abs(seconds) < 99.95 ? seconds.toFixed(Math.abs(seconds) < 9.995 ? 2 : 1) : WHOLE.format(seconds)) + " s"
    );
  if (Math.abs(value) >= 10) return value.toFixed(1) + " ms";
  return value.toFixed(Math.abs(value) < 1 ? 3 : 2) + " ms";
}

// A duration in a suitable unit: 780 ns, 12.4 µs, 3.21 ms, 1.25 s.
export function duration(ns) {
  const size = Math.abs(ns);
  if (size < 1e3) return Math.round(ns) + " ns";
  const [scale, unit] = size < 1e6 ? [1e3, "µs"] : size < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  const value = ns / scale;
  return value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0) + " " + unit;
}

// A time, exact to the nanosecond.
export function momentText(ns) {
  return EXACT.format(ns / 1e6) + " ms";
}

export function percent(part, whole) {
  return whole ? ((100 * part) / whole).toFixed(1) + "%" : "-";
}

export function bytesText(bytes) {
  const units = { GB: 1e9, MB: 1e6, kB: 1e3 };
  for (const [unit, scale] of Object.entries(units)) if (bytes >= scale) return (bytes / scale).toFixed(1) + " " + unit;
  return bytes + " B";
}

export function bandwidth(bytes, ns) {
  if (!ns) return "-";
  const rate = bytes / ns;
  return rate >= 0.1 ? rate.toFixed(1) + " GB/s" : (1000 * rate).toFixed(1) + " MB/s";
}

// A number of floating-point operations: 7.21 TFLOP.
export function operations(count) {
  const units = { PFLOP: 1e15, TFLOP: 1e12, GFLOP: 1e9, MFLOP: 1e6 };
  const [unit, scale] = Object.entries(units).find((pair) => count >= pair[1]) ?? ["MFLOP", 1e6];
  const value = count / scale;
  return `${value >= 100 ? WHOLE.format(value) : value.toFixed(value < 10 ? 2 : 1)} ${unit}`;
}

export function countText(number) {
  return WHOLE.format(number);
}

// A text of at most so many letters, with … in its middle: similar names differ at both ends.
export function middle(text, letters) {
  if (text.length <= letters) return text;
  const head = Math.floor(letters / 2);
  const tail = letters - 1 - head;
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
