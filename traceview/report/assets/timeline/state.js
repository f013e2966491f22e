// What the timeline shows at the moment, shared by its modules.
export const AXIS = 28; // pixels

/** @type {import("../types").View} */
export const view = {
  from: 0,
  to: 1,
  whole: [0, 1],
  first: [0, 1],
  lit: null,
  pending: false,
  calm: undefined,
  width: 0,
  height: 0,
  frames: 0,
  took: 0,
};

/** @type {import("../types").Board} */
export const board = {
  groups: [],
  numbered: [],
  shown: [],
  height: 0,
  tall: 0,
  pinned: 0,
  filter: "",
  quiet: new Set(),
  cover: { starts: [], ends: [] },
  dragged: null,
};

export const NOTHING = { hit: null, partners: [], peers: [], producer: null, path: "" };

/** @type {import("../types").Selected} */
export const selected = { ...NOTHING };

// The time of the selected event, or of the place that is highlighted; null without one.
export function selectedSpan() {
  const { hit } = selected;
  if (hit) return [hit.marks.start[hit.i], hit.marks.end[hit.i]];
  return view.lit && [view.lit.start, view.lit.end];
}

/** @type {import("../types").LinkedState} */
export const linked = { group: null, at: -1, rows: new Map(), from: null };

/** @type {import("../types").Area} */
export const area = { points: [], rows: null, moving: false, result: null, kept: null };

/** @type {import("../types").Pointer} */
export const pointer = { x: null, from: null, last: null, moved: false, selects: false, over: null, fixed: null };
