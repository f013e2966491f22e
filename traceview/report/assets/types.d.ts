// Shapes of the data in the documents and of the state that the scripts share; read by the type checker only.

/** A class of marks, with its own colour and pattern: core/palette.css. */
export type Look = string;
/** Numbers by the name of an idle cause. */
export type Causes = Record<string, number>;
/** The position of a packed column: its first byte, and the bytes of each number. */
export type Packed = [place: number, width: number];
type Column = ArrayLike<number> & { includes(value: number): boolean; indexOf(value: number): number };

/** A place in the timeline; `rows` are ids. Times are ns from the page's zero here and below. */
export interface Place {
  start: number;
  end: number;
  rows: string[];
  text?: string;
}

/** Places that belong together: the instances of a kernel, the matches of a search, the worst places of a finding. */
export interface Linked {
  title: string;
  places: Place[];
  /** What they are, after their number. */
  words?: string;
  /** How many the capture has. */
  total?: number;
  /** What the panel shows in place of an event. */
  content?: (Node | null)[];
  /** Marks what stands for a place elsewhere on the page. */
  mark?(place: Place): void;
}

/** Marks of one lane as columns, ascending by start. `reach` is the latest end so far. */
export interface Marks {
  n: number;
  start: Column;
  end: Column;
  reach: Column;
  name: Column;
  look: Column;
  bytes?: Column;
  operations?: Column;
  host_memory?: Column;
  correlation?: Column;
  stack?: Column;
  waited?: Column;
  starved?: Column;
  shape?: Column;
  value?: Column;
  low?: Column;
  high?: Column;
  refill?: Column;
  /** Events that a mark stands for, less one; merged marks alone have it. */
  count?: Column;
  busyOf?: (i: number) => number;
}

export interface Piece {
  chunk: number;
  marks: Record<string, Packed> & { n: number };
  made?: Marks;
}

export interface Lane {
  /** Coarse levels first; a bin is 2 to the power of `shift` ns wide. */
  levels: (Piece & { shift: number })[];
  exact: Piece | null;
  whole: boolean;
}

export interface Row {
  kind: string;
  id: string;
  label: string;
  note: string;
  more: boolean;
  pinned?: boolean;
  /** Whether it starts as a "more" row. */
  folded?: boolean;
  process: number | null;
  /** The thread or device whose rows fold together, "" for none. */
  owner: string;
  events: number;
  lanes: Lane[];
  number: number;
  group: Group;
  /** The unit of a counter, and the factor of its values; its range is found when it is first drawn. */
  counter?: { unit: string; scale: number };
  range?: { low: number; most: number; high: number };
  y: number;
  h: number;
}

export interface Group {
  label: string;
  note: string;
  rows: Row[];
  number: number;
  folded: boolean;
  all: boolean;
  shut: Set<string>;
}

/** What one line of the timeline shows: a row, the heading of a group, or its "more" row, which have no lanes. */
export type Item = Omit<Row, "lanes" | "more"> & { lanes?: Lane[]; more?: boolean | Row[]; summary?: string };

export interface Hit {
  item: Row;
  lane: Lane | null;
  marks: Marks;
  i: number;
  bin: number;
}

export interface Partner {
  row: Row;
  marks: Marks;
  i: number;
}

/** What a remedy saves of `of_ns`, an iteration or the run. */
export interface Gain {
  ns: number;
  low_ns: number;
  high_ns: number;
  of_ns: number;
  fraction: number;
  at_most: boolean;
  source: "predicted" | "bound" | "none";
  reason: string;
  change: string;
}

export interface Finding {
  id: string;
  severity: string;
  title: string;
  cost_ns: number;
  per_iteration_ns: number | null;
  advice: string;
  code: string;
  device: string | null;
  host: { stack: { function: string; file: string; line: number }[]; own: number } | null;
  /** The advice in one line. */
  remedy: string;
  gain: Gain;
  /** The words of the list that it belongs to; "" for gains of an iteration. */
  list: string;
  /** Whether its gain is unknown, or nothing. */
  folded: boolean;
  evidence: Required<Place>[];
}

export interface Device {
  id: string;
  name: string;
  kernel_count: number;
  /** The counted iterations and the whole window, what findings cover first; one where both are the same. */
  views: DeviceView[];
}

export interface DeviceView {
  covers: string;
  window_ns: number;
  time_words: string;
  idle_ns: number;
  parts: { look: Look; word: string; ns: number }[];
  /** Families of the kernels that compute, the costliest first. */
  families: { family: string; word: string; ns: number }[];
  /** Its idle time by cause, and by what the host does in it where the capture tells. */
  tables: DeclaredTable[];
}

/** A table as its measure declares it (traceview/model/columns.py). */
export interface DeclaredTable {
  title: string;
  note: string;
  not_measured: string | null;
  columns: { name: string; title: string; unit: string }[];
  rows: (string | number | null)[][];
  row_count: number;
}

/** What changes give, alone and together: report/analysis/page.py. The first `combined` are together, too. */
export interface Predictions {
  now: string;
  base_ns: number;
  path: { look: Look; word: string; ns: number }[];
  combined: number;
  rows: {
    changes: string[];
    title: string;
    ns: number;
    low: number;
    high: number;
    path: { look: Look; word: string; ns: number }[];
    note: string;
  }[];
}

export interface NotMeasured {
  not_measured: string;
}

export interface Iterations {
  range: string;
  source: "range" | "period";
  confidence: "high" | "medium" | "low";
  time_ns: number;
  /** "; without the profiler about 9.9 ms (...)", or "". */
  unprofiled: string;
  candidates: { name: string; source: string; count: number; time_ns: number; share_fraction: number }[];
  count: number;
  skipped: number;
  skipped_why: string;
  spreads: Record<string, { median: number; p5: number; p95: number }>;
  /** Kinds of counted iterations; none if they are of one kind. */
  kinds: { words: string; median_ns: number }[];
  /** Bars of the strip; each stands for one iteration, or for the mean of several, and leads to the slowest. */
  bars: { ns: number; skipped: boolean; name: string; start: number; end: number }[];
}

export interface Timeline {
  span: [number, number];
  events: number;
  whole: boolean;
  cover: [number, number][];
  looks: Look[];
  used: Look[];
  annotating: Record<string, string>;
  groups: { label: string; note: string; rows: Row[] }[];
  summary_chunk: number;
  tally: { shift: number; count: number; devices: { id: string; columns: Record<string, Packed> }[] };
  /** Time and events by row, bin and name; cell = bin * names + name. */
  sums?: {
    shift: number;
    count: number;
    names: number;
    rows: { row: string; table: string; n: number; columns: Record<string, Packed> }[];
  };
  index?: { n: number; rows: string[]; columns: Record<string, Packed> };
}

/** What follows the choice between the steady part and the whole window. */
export interface Answer {
  /** The answer, and the lines that it rests on. */
  answer: string;
  answer_basis: string[];
  /** Why there is no GPU work, and what to do. */
  missing: string[];
  findings: Finding[];
}

/** The page of an analysis: report/analysis/page.py. A page of a fleet has only `file`. */
export interface Page extends Answer {
  file: string;
  nsys: string | null;
  profiler: string;
  narrowed: boolean;
  program: string;
  /** The answer for the second of `covers`; null if there is none. */
  other: Answer | null;
  /** What the bars can cover, the default first. */
  covers: string[];
  /** What they cover now. */
  cover: string;
  /** The time that the timeline shows first, if not all of it. */
  opens: [number, number] | null;
  cause_words: Record<string, string>;
  memories: string[];
  devices: Device[];
  iterations: Iterations | NotMeasured;
  tables: DeclaredTable[];
  /** What changes would give; null where nothing can be predicted. */
  predictions: Predictions | null;
  notes: { text: string; affects: string[] }[];
  timeline: Timeline;
  looks: Look[];
  names: string[];
}

export interface ChartItem {
  text: string;
  place: Place | null;
}

export interface ChartSpec {
  id: string;
  heading: string;
  note: string;
  items: ChartItem[];
  height?: number;
  bare?: boolean;
  /** The picture at a width in pixels, with the chosen item. */
  picture(width: number, at: number): { traces: object[]; layout: any };
  /** Shows a part alone. */
  open?(at: number): void;
  table(): Node;
}

export interface Chart {
  spec: ChartSpec;
  stage: HTMLElement & { on(event: string, action: (event: any) => void): void };
  status: HTMLElement;
  at: number;
  drawn: boolean;
}

export interface Rank {
  label: string;
  file: string;
  device: string;
  /** The number of its host; null if unknown. */
  node: number | null;
  gpu: string;
  set: number;
  straggler: boolean;
  wall: number;
  own: number;
  lag: number | null;
  compute: number;
  exposed_communication: number;
  copies: number;
  idle: number;
  wait: number;
  bare_wait: number;
  caused: number;
  bare_caused: number;
  causes: number[];
  kernels: number;
  last_count: number;
  matched: number;
  iterations: number;
}

/** The page of a fleet: report/fleet_html. */
export interface FleetContent {
  title: string;
  name: string;
  facts: string;
  answer: string;
  sets: number;
  reports: number;
  each: boolean;
  causes: string[];
  ranks: Rank[];
  advice: { title: string; text: string; price: string; rank: number }[];
  groups: {
    kind: string;
    name: string;
    how: string;
    ranks: number;
    count: number;
    skew_median: number;
    skew_p95: number;
    transfer: number;
    waited: number;
    last: number;
    last_count: number;
  }[];
  pairs: { waiter: number; last: number; waited: number; count: number }[];
  pairCount: number;
  clocks: {
    file: string;
    offset: number;
    words: string;
    session: string;
    drift: number;
    uncertainty: number | null;
  }[];
  skipped: { file: string; reason: string }[];
  notes: string[];
  /** Collectives of ranks that ran them together, a row for each rank; times on the common clock. */
  times: { ranks: number[]; names: string[]; kind: Packed; count: number; start: Packed; length: Packed }[];
  timesLeftOut: number;
  /** The work of ranks in bins; `kernel` is an index into `names` plus one. */
  work: ({ rank: number; start: number; width: number; count: number; names: string[]; kernel: Packed } & Record<
    "compute" | "copies" | "communication",
    Packed
  >)[];
  heat: ({ names: string[]; steady: number[]; merged: number } & Record<Figure, Packed>) | null;
}

export type Figure = "own" | "wait" | "compute" | "wall";

/** The heat map: a value per rank and column, -1 where a rank has no such iteration. */
export interface Heat {
  columns: number;
  names: string[];
  steady: number[];
  scale: Partial<Record<Figure, [number, number]>>;
  own?: Float64Array;
  wait?: Float64Array;
  compute?: Float64Array;
  wall?: Float64Array;
}

/** Units and their sizes, the largest first. */
export type Scales = [number, string][];

export interface TableColumn {
  heading?: string;
  /** What the page shows; a column without it is for the CSV file only. */
  cell?: (row: any) => string | Node;
  /** The column's name in the CSV file. */
  field: string;
  value: (row: any) => string | number;
  /** Whether its cells are words, which stand on the left. */
  words?: boolean;
  /** Units of its figures; the column is written in one of them. */
  scales?: Scales;
}

export interface TableOptions {
  /** Headings are buttons that call `by`. */
  sort?: { heading: string; down: boolean; by: (heading: string) => void };
  /** What a click on a row does. */
  open?: (row: any) => void;
}

/** Times by name. */
export type Sums = Map<string, { time: number; started?: number }>;

export interface TreePart {
  name: string;
  time: number;
  inner: TreePart[];
  /** Whether its inner parts show. */
  open?: boolean;
  [figure: string]: any;
}

/** What the timeline shows: times are ns from the page's zero, sizes pixels. */
export interface View {
  from: number;
  to: number;
  whole: [number, number];
  first: [number, number];
  /** The highlighted place. */
  lit: Place | null;
  /** Runs until the view has come to rest. */
  calm: ReturnType<typeof setTimeout> | undefined;
  pending: boolean;
  width: number;
  height: number;
  frames: number;
  took: number;
}

export interface Board {
  groups: Group[];
  /** All rows, in the order of their numbers. */
  numbered: Row[];
  /** What is drawn. */
  shown: Item[];
  height: number;
  tall: number;
  /** The height of the pinned rows, which come first. */
  pinned: number;
  filter: string;
  /** The rows without events in view. */
  quiet: Set<Row>;
  /** Where every event is there. */
  cover: { starts: number[]; ends: number[] };
  dragged: object | null;
}

/** The selected mark, the launch or the GPU work that belongs to it, and the NVTX ranges around it. */
export interface Selected {
  hit: Hit | null;
  partners: Partner[];
  /** The same collective on other GPUs. */
  peers: Partner[];
  /** What it waited for, and how long in ns. */
  producer: (Partner & { wait: number }) | null;
  path: string;
}

/** Places that belong together: the current one, all by row, and what the reader came from. */
export interface LinkedState {
  group: any;
  at: number;
  rows: Map<string, { spans: Place[]; reach: Float64Array }>;
  from: HTMLElement | null;
}

/** The selected area. */
export interface Area {
  points: number[];
  /** The ids of its rows; null for all. */
  rows: string[] | null;
  /** Whether the second end follows the pointer. */
  moving: boolean;
  /** Its figures, and those of the area that it is compared with. */
  result: any;
  kept: any;
}

export interface Pointer {
  /** The time under the pointer. */
  x: number | null;
  /** The events where a drag began and was last seen. */
  from: PointerEvent | null;
  last: PointerEvent | null;
  moved: boolean;
  /** Whether the drag selects an area. */
  selects: boolean;
  /** The last move over the rows. */
  over: PointerEvent | null;
  /** The other end where an end of the area is dragged. */
  fixed: number | null;
}

/** The work of a rank in bins; `sums` are the shares of all bins before each, so that a mean is one subtraction. */
export interface RankWork {
  start: number;
  width: number;
  count: number;
  names: string[];
  kernel: ArrayLike<number>;
  sums: Record<string, Float64Array>;
}

declare global {
  const Plotly: any;
  interface Window {
    traceview: object;
  }
}
