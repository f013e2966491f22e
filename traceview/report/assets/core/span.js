// Moves of a span of time that is in view, and the keys of these moves.

/** @typedef {{ from: number, to: number }} Span */

const SPAN_KEYS = {
  w: "in",
  s: "out",
  a: "left",
  d: "right",
  ArrowLeft: "left",
  ArrowRight: "right",
  "+": "in",
  "-": "out",
  0: "fit",
};

// Returns the name of the move of a key, undefined for other keys. `more` are further keys.
export function moveOfKey({ key, ctrlKey, metaKey, altKey }, more = {}) {
  const keys = { ...SPAN_KEYS, ...more };
  return ctrlKey || metaKey || altKey ? undefined : (keys[key] ?? keys[key.toLowerCase()]);
}

/** @param {Span} span */
export function zoomed({ from, to }, factor, about = (from + to) / 2) {
  return { from: about - (about - from) * factor, to: about + (to - about) * factor };
}

/** @param {Span} span */
export function shifted({ from, to }, share) {
  const shift = share * (to - from);
  return { from: from + shift, to: to + shift };
}

/**
 * Returns the moves by name: "in", "out", "left" and "right".
 * @param {Span} span the span in view
 * @param {(span: Span) => void} show
 */
export function spanMoves(span, show) {
  return {
    in: () => show(zoomed(span, 0.6)),
    out: () => show(zoomed(span, 1 / 0.6)),
    left: () => show(shifted(span, -0.2)),
    right: () => show(shifted(span, 0.2)),
  };
}
