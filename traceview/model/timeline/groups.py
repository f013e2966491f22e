"""The rows of the timeline: devices with their bands and streams, processes with their threads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.analysis import DeviceUse, Iterations
from traceview.model.rows import place_text
from traceview.model.sizes import CounterSeries, counter_steps
from traceview.model.stacks import HostEvidence, Numbers, node_levels
from traceview.model.timeline.events import Owners, PageInputs, call_id, idle_id, overlap_ids, stream_id
from traceview.model.timeline.marks import ALL, NO_MARKS, Marks, NameColumn, Names, Rows
from traceview.model.timeline.rows import LOOKS, Group, TimelineRow
from traceview.model.timeline.stored import AllMarks
from traceview.model.trace import Trace, Window
from traceview.model.units import plain

if TYPE_CHECKING:
    from traceview.model.whatif import PathSpan


Json = dict[str, Any]
Lanes = Mapping[str, AllMarks]  # by id (TimelineEvents.lanes)

MAX_DEPTH = 11
MAX_STACKS = 20_000  # nodes of the tree of stacks on a page
MAX_FRAME = 160  # letters
FRACTION_SCALE = 1000  # the page holds whole numbers: values with a fraction are multiplied
# The looks of the parts of the critical path (traceview/model/whatif.py).
PATH_LOOKS = {
    "compute": "compute",
    "communication": "communication",
    "copy": "copy",
    "memset": "memset",
    "gap": "idle_queued",
    "launch": "idle_launch",
    "host": "idle_host",
    "call": "call_api",
    "wait": "call_sync",
}


def rows(inputs: PageInputs, path: Sequence[PathSpan] = ()) -> list[Group]:
    """Return every row with all its marks, the critical path first."""
    analysis, events = inputs.analysis, inputs.events
    span, names, lanes = events.span, events.names, events.lanes
    groups = [Group("", "", (_path(path, names),))] if path else []
    if isinstance(analysis.iterations, Iterations):
        groups.append(_ruler(analysis.iterations, names))
    host = HostRows.from_inputs(inputs)
    projected = projected_rows(analysis.trace, inputs.projected, names)
    counters = counter_rows(inputs.counters, names, span)
    if None in counters:
        groups.append(Group("machine", "", tuple(counters[None])))
    for device in analysis.devices:
        leading = (
            TimelineRow("overlap", f"o:{device.id}", "work, by class", "", _lanes(lanes, overlap_ids(device))),
            TimelineRow("idle", f"d:{device.id}", "idle, by cause", "", _lanes(lanes, [idle_id(device)])),
        )
        own = counters.get(device.device, ())
        streams = stream_rows(analysis.trace.streams, device, lanes)
        device_rows = (*leading, *own, *projected.get(device.device, ()), *streams)
        groups.append(Group(device.id, (device.name or "").strip(), device_rows))
    return [*groups, *host.groups()]


def _lanes(lanes: Lanes, ids: Sequence[str]) -> tuple[AllMarks, ...]:
    return tuple(lanes.get(lane, NO_MARKS) for lane in ids)


def _ruler(iterations: Iterations, names: Names) -> Group:
    each = iterations.per_iteration
    start = np.array([iteration.start_ns for iteration in each], np.int64)
    order = np.argsort(start, kind="stable")
    marks = Marks(
        start,
        np.array([iteration.end_ns for iteration in each], np.int64),
        np.array([names.number(iteration.name) for iteration in each], np.int64),
        np.array([LOOKS.index("skipped" if iteration.skipped else "iteration") for iteration in each], np.int64),
    ).take(order)
    return Group("", "", (TimelineRow("ruler", "ruler", "iterations", iterations.range, (marks,)),))


def _path(spans: Sequence[PathSpan], names: Names) -> TimelineRow:
    ordered = sorted(spans, key=lambda span: (span.start_ns, span.end_ns))
    marks = Marks(
        np.array([span.start_ns for span in ordered], np.int64),
        np.array([span.end_ns for span in ordered], np.int64),
        np.array([names.number(span.name or span.kind) for span in ordered], np.int64),
        np.array([LOOKS.index(PATH_LOOKS[span.kind]) for span in ordered], np.int64),
    )
    return TimelineRow("ruler", "path", "critical path", "as it ran", (marks,))


def stream_rows(streams: pl.DataFrame, device: DeviceUse, lanes: Lanes) -> Iterator[TimelineRow]:
    """Yield the device's streams, busiest first; unused streams come last, folded."""
    several = len(device.process_ids) > 1
    for use in sorted(device.streams, key=lambda use: (-use.busy_ns, use.stream)):
        (marks,) = _lanes(lanes, [stream_id(use.stream)])
        note = f"process {use.process_id}" if several else ""
        yield TimelineRow("stream", f"s:{use.stream}", use.label, note, (marks,), len(marks), process=use.process_id)
    used = {use.stream for use in device.streams}
    for row, (owner, label) in enumerate(streams.select("device", "label").iter_rows()):
        if owner == device.device and row not in used:
            yield TimelineRow("stream", f"s:{row}", label, "unused", (), more=True)


class HostRows(NamedTuple):
    """The rows of threads: API calls, stack samples and NVTX ranges."""

    trace: Trace
    lanes: Lanes
    ranges: Owners
    range_name: NameColumn
    samples: Mapping[int, Marks]  # by thread

    @classmethod
    def from_inputs(cls, inputs: PageInputs) -> HostRows:
        """Collect the ranges inside the window, and the samples."""
        trace, events = inputs.analysis.trace, inputs.events
        owners = Owners.from_frame(trace.window, trace.ranges, "thread")
        return cls(trace, events.lanes, owners, events.names.column(trace.ranges["name"]), sample_marks(inputs))

    def groups(self) -> Iterator[Group]:
        """Yield a group for each process, the thread with most events first."""
        threads = self.trace.threads
        calls = np.array([len(self.lanes.get(call_id(thread), ())) for thread in range(len(threads))], np.int64)
        count = self.ranges.count(len(threads)) + calls
        process = threads["process"].to_numpy()
        for process_id in sorted({int(process[row]) for row in np.flatnonzero(count)}):
            mine = [int(row) for row in np.argsort(-count, kind="stable") if process[row] == process_id and count[row]]
            rows = tuple(row for thread in mine for row in self._rows(thread))
            yield Group(f"process {process_id}", "", rows)

    def _rows(self, thread: int) -> Iterator[TimelineRow]:
        name, tid, process = self.trace.threads.select("name", "tid", "process").row(thread)
        label, part = name or f"thread {tid}", f"t:{thread}"
        if call_id(thread) in self.lanes:
            calls = self.lanes[call_id(thread)]
            yield TimelineRow(
                "call", f"t:{thread}", label, f"API {tid}", (calls,), len(calls), process=process, part=part
            )
        if thread in self.samples:
            marks = self.samples[thread]
            row, text = f"k:{thread}", f"{label}, stacks"
            yield TimelineRow("sample", row, text, "samples", (marks,), len(marks), process=process, part=part)
        ranges = self._ranges(self.ranges.rows_of(thread))
        for depth, lane in enumerate(by_depth(ranges)):
            text = f"{label}, NVTX" if depth == 0 else ""
            row = f"n:{thread}:{depth}"
            yield TimelineRow("range", row, text, f"depth {depth}", (lane,), len(lane), process=process, part=part)

    def _ranges(self, rows: Rows) -> Marks:
        frame = self.trace.ranges
        start, end = (frame[name].to_numpy()[rows] for name in ("start", "end"))
        look = np.full(len(start), LOOKS.index("range"), np.uint8)
        return Marks(start, end, self.range_name.numbers(rows), look)


def by_depth(marks: Marks) -> list[Marks]:
    """Split ranges by depth; the deepest share the last lane."""
    if not bool((marks.start[1:] > marks.start[:-1]).all()):
        marks = marks.take(np.lexsort((-marks.end, marks.start)))
    depth = _depth(marks.start, marks.end)
    levels = [np.flatnonzero(depth == level) for level in range(int(depth.max(initial=-1)) + 1)]
    return [marks.take(rows if len(rows) < len(marks) else ALL) for rows in levels if len(rows)]


def _depth(start: Times, end: Times) -> Times:
    """Return how many ranges of the thread were open when each range began; ranges by start, longest first."""
    ended = np.searchsorted(np.sort(end), start, side="right")
    depth: Times = np.clip(np.arange(len(start)) - ended, 0, MAX_DEPTH)
    return depth


def projected_rows(trace: Trace, projected: pl.DataFrame, names: Names) -> dict[int, list[TimelineRow]]:
    """Return the projected ranges of each device, a row for each depth on their threads."""
    if projected.is_empty():
        return {}
    ranges = trace.ranges
    depth = np.zeros(len(ranges), np.int64)
    thread, start, end = (ranges[name].to_numpy() for name in ("thread", "start", "end"))
    order = np.lexsort((-end, start, thread))
    for of_thread in np.split(order, np.flatnonzero(np.diff(thread[order])) + 1):
        depth[of_thread] = _depth(start[of_thread], end[of_thread])
    owner, device = projected["range"].to_numpy(), projected["device"].to_numpy()
    marks = Marks(
        projected["start"].to_numpy(),
        projected["end"].to_numpy(),
        names.column(ranges["name"]).numbers(owner),
        np.full(len(projected), LOOKS.index("range"), np.uint8),
        {"operations": projected["operations"].to_numpy()},
    )
    return {
        int(row): _projected_device_rows(trace.devices["id"][int(row)], marks, depth[owner], device == row)
        for row in np.unique(device)
    }


def _projected_device_rows(name: str, marks: Marks, depth: Times, mine: NDArray[np.bool_]) -> list[TimelineRow]:
    rows = []
    for place, level in enumerate(np.unique(depth[mine])):
        lane = (marks.take(np.flatnonzero(mine & (depth == level))),)
        text = "NVTX (GPU projection)" if place == 0 else ""
        rows.append(TimelineRow("projected", f"p:{name}:{level}", text, f"depth {level}", lane, part=f"p:{name}"))
    return rows


def counter_rows(counters: Sequence[CounterSeries], names: Names, span: Window) -> dict[int | None, list[TimelineRow]]:
    """Return the counters of each device (row of Trace.devices; None for the machine) inside a span."""
    rows: dict[int | None, list[TimelineRow]] = defaultdict(list)
    for number, counter in enumerate(counters):
        row = _counter_row(counter, f"c:{number}", names, span)
        if len(row.lanes[0]):
            rows[counter.device].append(row)
    return dict(rows)


def _counter_row(counter: CounterSeries, row_id: str, names: Names, span: Window) -> TimelineRow:
    steps = counter_steps(counter, span.start, span.end)
    whole = bool((steps.mean == np.rint(steps.mean)).all())
    scale = 1 if whole or counter.unit == "bytes" else FRACTION_SCALE
    details = {"value": steps.mean}
    if not (steps.low == steps.high).all():
        details |= {"low": steps.low, "high": steps.high}
    count = len(steps.start)
    marks = Marks(
        steps.start,
        steps.end,
        np.full(count, names.number(counter.name), np.int32),
        np.full(count, LOOKS.index("counter"), np.uint8),
        details={key: np.rint(column * scale).astype(np.int64) for key, column in details.items()},
    )
    facts = {"unit": counter.unit, "scale": scale}
    return TimelineRow("counter", row_id, counter.name, "", (marks,), counter=facts)


def annotating_threads(ranges: pl.DataFrame) -> dict[int, str]:
    """Return the thread with the most range time of each process; it annotates threads without ranges."""
    totals = (
        ranges.group_by("process", "thread")
        .agg((pl.col("end") - pl.col("start")).sum().alias("total"))
        .sort(["total", "thread"], descending=[True, False])
        .unique("process", keep="first", maintain_order=True)
        .sort("process")
    )
    return {process: f"t:{thread}" for process, thread, _ in totals.iter_rows()}


class SampleStacks(NamedTuple):
    """The stacks of a page: those with the most samples, and their callers.

    `kept` has their rows in HostEvidence.stacks, callers first. `number` has for each stack, from 1, the innermost of
    itself and its callers that is kept; 0 for none.
    """

    kept: Numbers
    number: Numbers

    @classmethod
    def from_evidence(cls, evidence: HostEvidence) -> SampleStacks:
        """Choose the stacks."""
        parent = evidence.stacks["parent"].cast(pl.Int64).to_numpy()
        stack, level = evidence.samples["stack"].to_numpy(), node_levels(parent)
        count = np.bincount(stack[stack >= 0], minlength=len(parent))
        for depth in range(int(level.max(initial=0)), 0, -1):
            rows = np.flatnonzero(level == depth)
            np.add.at(count, parent[rows], count[rows])
        order = np.lexsort((level, -count))
        kept = order[count[order] > 0][:MAX_STACKS]
        number = np.zeros(len(parent) + 1, np.int64)
        number[kept] = np.arange(1, len(kept) + 1)
        for depth in range(int(level.max(initial=0)) + 1):
            rows = np.flatnonzero((level == depth) & (number[:-1] == 0))
            number[rows] = number[parent[rows]]
        return cls(kept, number[:-1])

    def json(self, evidence: HostEvidence) -> Json:
        """Return the caller of each stack as its number (0 for none), its frame, and the text of each frame."""
        parent, frame = (evidence.stacks[name].to_numpy()[self.kept] for name in ("parent", "frame"))
        used, place = np.unique(frame, return_inverse=True)
        return {
            "caller": np.where(parent >= 0, self.number[parent], 0).tolist(),
            "frame": place.tolist(),
            "frames": [frame_text(*evidence.frames.row(int(row))) for row in used],
        }


def frame_text(function: str, file: str, line: int, _library: bool) -> str:
    """Return `train.py:20 step`, or `write (libc.so)` where the line is unknown."""
    place = place_text(file, line)
    return plain(f"{place} {function}" if line else f"{function} ({place})" if place else function, MAX_FRAME)


def sample_marks(inputs: PageInputs) -> dict[int, Marks]:
    """Return the stacks of each thread (row of Trace.threads) that has any, inside the timeline.

    The names of the marks are lines of the program.
    """
    evidence, span = inputs.analysis.trace.evidence, inputs.events.span
    known = inputs.stacks.filter((pl.col("start") < span.end) & (pl.col("end") > span.start))
    known = known.with_columns(pl.col("start", "end").clip(span.start, span.end))
    if known.is_empty():
        return {}
    number = SampleStacks.from_evidence(evidence).number
    frame = evidence.stacks["frame"].to_numpy()[evidence.own_nodes()]
    name = np.zeros(len(evidence.frames), np.int32)
    for row in np.unique(frame[known["stack"].to_numpy()]).tolist():
        name[row] = inputs.events.names.number(frame_text(*evidence.frames.row(row)))
    marks = {}
    for (thread,), own in known.partition_by("thread", as_dict=True).items():
        first, last, stack = (own[column].to_numpy() for column in ("start", "end", "stack"))
        look = np.full(len(own), LOOKS.index("sample"), np.uint8)
        marks[int(thread)] = Marks(first, last, name[frame[stack]], look, details={"stack": number[stack]})
    return marks
