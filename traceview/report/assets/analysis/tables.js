// The detailed tables.
import { byId, el } from "../core/dom.js";
import { page } from "../core/page.js";
import { swatch } from "../core/palette.js";
import {
  countColumn,
  bandwidthColumn,
  durationColumn,
  textColumn,
  shareColumn,
  sizeColumn,
  table,
} from "../core/table.js";
import { countText, milliseconds, percent } from "../core/words.js";

function section(heading, note, ...children) {
  return el(
    "section",
    {},
    el("h2", { text: heading }),
    note ? el("p", { class: "soft", text: note }) : null,
    ...children,
  );
}

export function showTables() {
  const several = page.devices.length > 1;
  const on = (device) => (several ? ` of ${device.id}` : "");
  const parts = page.devices.flatMap((device) => [
    copiesSection(device, on(device)),
    causesSection(device, on(device)),
  ]);
  byId("tables").replaceChildren(
    el("div", { class: "grid" }, ...parts, syncSection(), implicitSyncSection()),
    ...page.devices.map((device) => streamsSection(device, on(device))),
    rangesSection(),
  );
}

function copiesSection(device, on) {
  const rows = [...device.copies];
  const columns = [
    textColumn("kind", (row) => `${row.kind} ${row.memory}`),
    countColumn("count", (row) => row.count),
    sizeColumn("size", (row) => row.bytes),
    bandwidthColumn(
      "bandwidth",
      (row) => row.bytes,
      (row) => row.busy_ns,
    ),
    durationColumn("busy", (row) => row.busy_ns),
    shareColumn(
      "hidden",
      (row) => row.overlapped_ns,
      (row) => row.busy_ns,
    ),
    durationColumn("exposed", (row) => row.exposed_ns),
  ];
  const { communication } = device;
  const nccl = communication.count
    ? el(
        "p",
        {},
        `Communication: ${countText(communication.count)} kernels, ${milliseconds(communication.busy_ns)}, ${percent(communication.overlapped_ns, communication.busy_ns)} hidden behind compute, ${milliseconds(communication.exposed_ns)} exposed.`,
      )
    : null;
  return section(
    "Copies" + on,
    "Hidden: the share of the copy time during which compute runs.",
    rows.length ? table("Copies" + on, columns, rows) : el("p", { text: "No copies." }),
    nccl,
  );
}

function causesSection(device, on) {
  const rows = Object.entries(device.causes)
    .filter(([, ns]) => ns)
    .sort((a, b) => b[1] - a[1]);
  return section(
    "Idle time by cause" + on,
    `${milliseconds(device.idle_ns)} in ${countText(device.gap_count)} gaps. Each nanosecond is attributed to one cause.`,
    table(
      "Idle causes" + on,
      [
        textColumn(
          "cause",
          ([cause]) => cause,
          ([cause]) => el("span", {}, swatch("idle_" + cause), " ", page.cause_words[cause]),
        ),
        durationColumn("idle", ([, ns]) => ns),
        shareColumn(
          "share",
          ([, ns]) => ns,
          () => device.idle_ns,
        ),
        shareColumn(
          "of the run",
          ([, ns]) => ns,
          () => device.window_ns,
        ),
      ],
      rows,
    ),
  );
}

function streamsSection(device, on) {
  const streams = [...device.streams].sort((a, b) => b.busy_ns - a.busy_ns);
  return section(
    "Streams" + on,
    null,
    table(
      "Streams" + on,
      [
        textColumn("stream", (row) =>
          device.processes.length > 1 ? `${row.label}, process ${row.process_id}` : row.label,
        ),
        countColumn("kernels", (row) => row.kernel_count),
        countColumn("copies", (row) => row.copy_count),
        durationColumn("busy", (row) => row.busy_ns),
        durationColumn("compute", (row) => row.compute_ns),
        durationColumn("communication", (row) => row.communication_ns),
        durationColumn("copying", (row) => row.copy_ns),
        countColumn("gaps", (row) => row.gap_count),
        durationColumn("in gaps", (row) => row.gap_ns),
      ],
      streams,
    ),
  );
}

const CALL_COLUMNS = [
  textColumn(
    "call",
    (row) => row.api,
    (row) => el("span", { class: "mono", text: row.api }),
  ),
  countColumn("count", (row) => row.count),
  durationColumn("host blocked", (row) => row.blocked_ns),
  durationColumn("GPU busy", (row) => row.waited_ns),
  durationColumn("GPU idle", (row) => row.starved_ns),
  durationColumn("restart gap", (row) => row.refill_ns),
  durationColumn(
    "cost",
    (row) => row.starved_ns + row.refill_ns,
    (row) => el("b", { text: milliseconds(row.starved_ns + row.refill_ns) }),
  ),
];

function callsSection(heading, note, use) {
  return section(
    heading,
    note,
    use.calls.length ? table(heading, CALL_COLUMNS, use.calls) : el("p", { text: "None." }),
  );
}

function syncSection() {
  return callsSection(
    "Synchronize calls",
    "Waiting for a busy GPU costs nothing. The cost of a call is the GPU idle time during the call plus the restart gap after it.",
    page.sync,
  );
}

function implicitSyncSection() {
  return callsSection(
    "Implicitly synchronizing calls",
    "Copies of pageable memory, allocations and frees.",
    page.implicit_sync,
  );
}

const FIRST_RANGES = 24;
const RANGE_COLUMNS = [
  textColumn("range", (row) => (row.domain ? `${row.name} (${row.domain})` : row.name)),
  countColumn("count", (row) => row.count),
  durationColumn("host", (row) => row.host_ns),
  durationColumn("GPU busy", (row) => row.gpu_busy_ns),
  durationColumn("GPU span", (row) => row.gpu_span_ns),
  countColumn("kernels", (row) => row.kernel_count),
  countColumn("attributed via process", (row) => row.via_process_count),
];

function rangesSection() {
  const { nvtx } = page;
  if ("not_measured" in nvtx) return section("NVTX ranges", null, el("p", { text: nvtx.not_measured }));
  const cut = `The first ${countText(nvtx.length)} of ${countText(page.nvtx_count)} names; --json writes all of them.`;
  return section(
    "NVTX ranges (GPU projection)",
    "Sorted by GPU time. GPU work belongs to the range that was open at its launch, including launches of the backward pass on another thread.",
    table("NVTX ranges", RANGE_COLUMNS, nvtx, FIRST_RANGES),
    page.nvtx_count > nvtx.length ? el("p", { class: "soft", text: cut }) : null,
  );
}

export function showNotes() {
  const { kernels, copies, memsets, graphs } = page.unmatched;
  const cut = kernels + copies + memsets + graphs;
  const notes = [...page.notes];
  if (cut)
    notes.push(
      `${countText(cut)} GPU operations have no launch in the capture (kernels ${countText(kernels)}, copies ${countText(copies)}, memsets ${countText(memsets)}, graphs ${countText(graphs)}): the capture covers part of the run, or API tracing was off. Capture the whole run, or trace with -t cuda,nvtx.`,
    );
  byId("lacks").replaceChildren(
    notes.length
      ? el("ul", { class: "notes" }, ...notes.map((text) => el("li", { text })))
      : el("p", { text: "No gaps in the data." }),
  );
  byId("foot").textContent =
    "Times count from the first event of the capture. In the bars each nanosecond counts once, in this order: compute, communication, copies, memset. In the tables, copies and communication are compared with compute only.";
}
