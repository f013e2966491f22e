// What the timeline shows at the moment, shared by its modules.
export const AXIS = 28; // pixels

export const view = {
  from: 0,
  to: 1,
  whole: [0, 1],
  lit: null,
  box: null,
  pending: false,
  width: 0,
  height: 0,
  frames: 0,
};

export const board = { groups: [], numbered: [], shown: [], height: 0, filter: "", cover: { starts: [], ends: [] } };

export const selected = { hit: null, partners: [], path: "" };

export const measure = { points: [], moving: false, done: false, result: null };

export const pointer = { x: null, from: null, last: null, moved: false };
