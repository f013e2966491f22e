// What the timeline shows at the moment, shared by its modules.
export const AXIS = 28; // pixels

/**
 * Times are ns from the page's zero, sizes pixels. `lit` is the highlighted place,
 * `calm` runs until the view has come to rest.
 * @typedef {import("../types").Place} Place
 * @type {{ from: number, to: number, whole: [number, number], first: [number, number], lit: Place | null,
 *   calm: ReturnType<typeof setTimeout> | undefined,
 *   pending: boolean, width: number, height: number, frames: number, took: number }}
 */
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

/**
 * `numbered` are all rows as the server numbers them, `shown` what is drawn, `cover` where every event is there, `pinned` the
 * height of the pinned rows, which come first, `quiet` the rows without events in view.
 * @type {{ groups: import("../types").Group[], numbered: import("../types").Row[], shown: import("../types").Item[],
 *   height: number, tall: number, pinned: number, filter: string, quiet: Set<import("../types").Row>, cover: { starts: number[], ends: number[] }, dragged: object | null }}
 */
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

/**
 * The selected mark, the launch or the GPU work that belongs to it, and the NVTX ranges around it.
 * @type {{ hit: import("../types").Hit | null, partners: import("../types").Partner[], path: string }}
 */
export const selected = { hit: null, partners: [], path: "" };

/**
 * Places that belong together: the current one, all by row, and what the reader came from.
 * @type {{ group: any, at: number, rows: Map<string, { spans: number[][], reach: Float64Array }>, from: HTMLElement | null }}
 */
export const linked = { group: null, at: -1, rows: new Map(), from: null };

/**
 * The selected area: its two times and the ids of its rows (null for all), its figures, and those of the area that it is
 * compared with. `moving` while the second end follows the pointer.
 * @type {{ points: number[], rows: string[] | null, moving: boolean, result: any, kept: any }}
 */
export const area = { points: [], rows: null, moving: false, result: null, kept: null };

/**
 * The time under the pointer and its last move over the rows, the events where a drag began and was last seen, and whether
 * it has moved and selects an area.
 * @type {{ x: number | null, from: PointerEvent | null, last: PointerEvent | null, moved: boolean, selects: boolean,
 *   over: PointerEvent | null }}
 */
export const pointer = { x: null, from: null, last: null, moved: false, selects: false, over: null };
