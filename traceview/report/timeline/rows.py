"""The rows of the timeline: devices with bands and streams, processes with threads, and stacks of samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.analysis import DeviceUse, HostUse, Iterations
from traceview.model.rows import place_text
from traceview.model.sizes import CounterSeries, counter_steps
from traceview.model.stacks import HostEvidence, Numbers, node_levels
from traceview.model.trace import ROLES, Trace, Window
from traceview.model.units import plain
from traceview.report.timeline.inputs import PageInputs
from traceview.report.timeline.marks import ALL, NO_MARKS, Marks, Names, Rows, counted, used_texts
from traceview.report.timeline.work import LOOKS, PATH_LOOKS, WORDS, exposed_lanes, idle_lane, overlap_lanes, work_codes

if TYPE_CHECKING:
    from traceview.model.whatif import PathSpan

COSTS = ("waited", "starved", "refill")
MAX_DEPTH = 11
FRACTION_SCALE = 1000  # the page holds whole numbers: values with a fraction are multiplied
MAX_STACKS = 20_000  # nodes of the tree of stacks on a page
MAX_FRAME = 160  # letters


class TimelineRow(NamedTuple):
    """One row. Evidence refers to `id`; `events` counts the capture's events in the row, 0 for bands.

    A row has one or more lanes of marks. The row of an unused stream has none. The rows of an `owner`, a thread or a
    device, fold together.
    """

    kind: str  # ruler, overlap, idle, exposed, counter, stream, range, call, sample, projected
    id: str
    label: str
    note: str
    lanes: tuple[Marks, ...]
    events: int = 0
    more: bool = False  # folded initially
    process: int | None = None
    owner: str = ""
    counter: Mapping[str, object] | None = None  # a counter's unit and scale


class Group(NamedTuple):
    """Rows under one heading."""

    label: str
    note: str
    rows: tuple[TimelineRow, ...]


def timeline_rows(inputs: PageInputs, path: Sequence[PathSpan] = ()) -> tuple[Names, list[Group]]:
    """Return every row with all its marks, the critical path first, and the names of the marks."""
    analysis, trace, span = inputs.analysis, inputs.analysis.trace, inputs.span
    texts = (*used_texts(trace.operations["name"]), *used_texts(trace.api["name"]), *WORDS.values(), "")
    names = Names.from_texts(texts)
    groups = [Group("", "", (_path_row(path, names),))] if path else []
    if isinstance(analysis.iterations, Iterations):
        groups.append(Group("", "", (_iterations_row(analysis.iterations, names),)))
    ranges = _range_marks(trace, names)
    samples = sample_marks(trace.evidence, inputs.stacks, span, names)
    projected = _projected_rows(trace, inputs.projected, names)
    counters = _counter_rows(inputs.counters, names, span)
    if None in counters:
        groups.append(Group("machine", "", tuple(counters[None])))
    operations = names.numbers(trace.operations["name"])
    streams = _operation_marks(trace, operations)
    for device in analysis.devices:
        work, idle = overlap_lanes(inputs.work[device.device], names), idle_lane(device, operations, names.number(""))
        rows = (
            TimelineRow("overlap", f"o:{device.id}", "work", "by class", work),
            TimelineRow("idle", f"d:{device.id}", "idle", "by cause", (idle,)),
            *_exposed_rows(inputs, device, operations, names.number("")),
            *counters.get(device.device, ()),
            *projected.get(device.device, ()),
            *_stream_rows(trace.streams, device, streams),
        )
        groups.append(Group(device.id, (device.name or "").strip(), rows))
    of_threads = {"call": _call_marks(trace, analysis.host, names), "sample": samples, "range": ranges}
    return names, [*groups, *_process_groups(trace, of_threads)]


def _exposed_rows(
    inputs: PageInputs, device: DeviceUse, operations: NDArray[np.int32], none: int
) -> Iterator[TimelineRow]:
    exposed = inputs.exposed.get(device.device)
    if exposed is not None and len(exposed):
        lanes = exposed_lanes(exposed, operations, none)
        yield TimelineRow("exposed", f"e:{device.id}", "exposed", "by cause", lanes)


def _iterations_row(iterations: Iterations, names: Names) -> TimelineRow:
    ordered = sorted(iterations.per_iteration, key=lambda iteration: iteration.start_ns)
    spans = [(iteration.start_ns, iteration.end_ns, iteration.name) for iteration in ordered]
    marks = _marks_of(spans, ["skipped" if iteration.skipped else "iteration" for iteration in ordered], names)
    return TimelineRow("ruler", "ruler", "iterations", iterations.range, (marks,))


def _path_row(path: Sequence[PathSpan], names: Names) -> TimelineRow:
    ordered = sorted(path, key=lambda span: (span.start_ns, span.end_ns))
    spans = [(span.start_ns, span.end_ns, span.name or span.kind) for span in ordered]
    marks = _marks_of(spans, [PATH_LOOKS[span.kind] for span in ordered], names)
    return TimelineRow("ruler", "path", "critical path", "as it ran", (marks,))


def _marks_of(spans: Sequence[tuple[int, int, str]], looks: Sequence[str], names: Names) -> Marks:
    """Return marks from start, end and name of each, and their looks."""
    columns = np.array([(start, end, names.number(name)) for start, end, name in spans], np.int64).reshape(-1, 3)
    start, end, name = columns.T
    return Marks(start, end, name, np.array([LOOKS.index(look) for look in looks], np.int64))


def rows_by_owner(frame: pl.DataFrame, column: str, window: Window | None) -> dict[int, Rows]:
    """Return the rows of the events inside the window by the stream or thread that owns them.

    `column` has the owner's row in another frame.
    """
    owner, inside = frame[column].to_numpy(), None
    if window is not None:
        inside = np.flatnonzero((frame["start"].to_numpy() < window.end) & (frame["end"].to_numpy() >= window.start))
        owner = owner[inside]
    count = counted(owner)
    owners = np.flatnonzero(count).tolist()
    if len(owners) < 2:
        return dict.fromkeys(owners, ALL if inside is None else inside)
    order = np.argsort(owner, kind="stable")
    order = order if inside is None else inside[order]
    return dict(zip(owners, np.split(order, np.cumsum(count[owners])[:-1]), strict=True))


def _operation_marks(trace: Trace, name: NDArray[np.int32]) -> dict[int, Marks]:
    """Return the operations of each stream (row of Trace.streams); `name` has the number of each operation's name."""
    operations = trace.operations
    columns = ("start", "end", "bytes", "correlation", "shape")
    start, end, size, correlation, shape = (operations[column].to_numpy() for column in columns)
    look = work_codes(operations)
    # 0 means none; a column of zeros is left out.
    memory = (operations["memory"].to_physical().cast(pl.UInt8) + 1).fill_null(0).to_numpy()
    details = {"correlation": correlation, "host_memory": memory, "shape": shape}
    marks = Marks(start, end, name, look, {"bytes": size}, details)
    return {stream: marks.take(rows) for stream, rows in rows_by_owner(operations, "stream", trace.window).items()}


def _call_marks(trace: Trace, host: HostUse, names: Names) -> dict[int, Marks]:
    """Return the API calls of each thread (row of Trace.threads), with their costs in ns."""
    calls = trace.api
    role = calls["role"].to_physical().cast(pl.UInt8).fill_null(ROLES.index("api")).to_numpy()
    role = role + np.uint8(LOOKS.index(f"call_{ROLES[0]}"))
    start, end, correlation = (calls[column].to_numpy() for column in ("start", "end", "correlation"))
    marks = Marks(start, end, names.numbers(calls["name"]), role, {}, {"correlation": correlation})
    threads = {}
    for thread, rows in rows_by_owner(calls, "thread", trace.window).items():
        mine = marks.take(rows)
        threads[thread] = replace(mine, sums=_costs(host, rows, len(mine)))
    return threads


def _costs(host: HostUse, rows: Rows, count: int) -> dict[str, Times]:
    """Return the costs in ns of the calls in some of the `count` rows of Trace.api, by name; empty without costs."""
    costs: dict[str, Times] = {}
    for use in (host.sync, host.implicit_sync):
        place, mine = use.frame["api"].to_numpy(), ALL  # type: tuple[Times, Rows]
        if not isinstance(rows, slice):
            nearest = np.minimum(np.searchsorted(rows, place), count - 1)
            mine = np.flatnonzero(rows[nearest] == place)
            place = nearest[mine]
        for cost in COSTS if len(place) else ():
            costs.setdefault(cost, np.zeros(count, np.int64))[place] = use.frame[cost].to_numpy()[mine]
    return costs


def _range_marks(trace: Trace, names: Names) -> dict[int, Marks]:
    """Return the NVTX ranges of each thread (row of Trace.threads)."""
    start, end = (trace.ranges[column].to_numpy() for column in ("start", "end"))
    look = np.full(len(start), LOOKS.index("range"), np.uint8)
    marks = Marks(start, end, names.numbers(trace.ranges["name"]), look)
    return {thread: marks.take(rows) for thread, rows in rows_by_owner(trace.ranges, "thread", trace.window).items()}


def _stream_rows(streams: pl.DataFrame, device: DeviceUse, marks: Mapping[int, Marks]) -> Iterator[TimelineRow]:
    """Yield the device's streams, busiest first; unused streams come last, folded."""
    several = len(device.process_ids) > 1
    for use in sorted(device.streams, key=lambda use: (-use.busy_ns, use.stream)):
        lane = marks.get(use.stream, NO_MARKS)
        note = ", ".join([*filter(None, [use.purpose]), *([f"process {use.process_id}"] if several else [])])
        yield TimelineRow("stream", f"s:{use.stream}", use.label, note, (lane,), len(lane), process=use.process_id)
    used = {use.stream for use in device.streams}
    for row, (owner, label) in enumerate(streams.select("device", "label").iter_rows()):
        if owner == device.device and row not in used:
            yield TimelineRow("stream", f"s:{row}", label, "unused", (), more=True)


def _process_groups(trace: Trace, marks: Mapping[str, Mapping[int, Marks]]) -> Iterator[Group]:
    """Yield a group for each process, the thread with most calls and ranges first; marks are by kind and thread."""
    count = np.zeros(len(trace.threads), np.int64)
    for kind in ("call", "range"):
        for thread, lane in marks[kind].items():
            count[thread] += len(lane)
    process = trace.threads["process"].to_numpy()
    order = [row for row in np.argsort(-count, kind="stable").tolist() if count[row]]
    for process_id in sorted({int(process[row]) for row in order}):
        rows = (row for thread in order if process[thread] == process_id for row in _thread_rows(trace, thread, marks))
        yield Group(f"process {process_id}", "", tuple(rows))


def _thread_rows(trace: Trace, thread: int, marks: Mapping[str, Mapping[int, Marks]]) -> Iterator[TimelineRow]:
    name, tid, process = trace.threads.select("name", "tid", "process").row(thread)
    label = name or f"thread {tid}"

    def row(kind: str, id: str, label: str, note: str, lane: Marks) -> TimelineRow:
        return TimelineRow(kind, id, label, note, (lane,), len(lane), process=process, owner=f"t:{thread}")

    calls, samples, ranges = (marks[kind].get(thread) for kind in ("call", "sample", "range"))
    if calls is not None:
        yield row("call", f"t:{thread}", label, f"API {tid}", calls)
    if samples is not None:
        yield row("sample", f"k:{thread}", f"{label}, stacks", "samples", samples)
    for depth, lane in enumerate(() if ranges is None else by_depth(ranges)):
        yield row("range", f"n:{thread}:{depth}", "" if depth else f"{label}, NVTX", f"depth {depth}", lane)


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


def _projected_rows(trace: Trace, projected: pl.DataFrame, names: Names) -> dict[int, list[TimelineRow]]:
    """Return the projected ranges of each device, a row for each depth on their threads."""
    rows: dict[int, list[TimelineRow]] = defaultdict(list)
    if projected.is_empty():
        return rows
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
        names.numbers(ranges["name"])[owner],
        np.full(len(projected), LOOKS.index("range"), np.uint8),
        {"operations": projected["operations"].to_numpy()},
    )
    level = depth[owner]
    for row in np.unique(device).tolist():
        name = trace.devices["id"][row]
        for number in np.unique(level[device == row]).tolist():
            lane = marks.take(np.flatnonzero((device == row) & (level == number)))
            text = "" if rows[row] else "NVTX (GPU projection)"
            id, note = f"p:{name}:{number}", f"depth {number}"
            rows[row].append(TimelineRow("projected", id, text, note, (lane,), owner=f"p:{name}"))
    return rows


def _counter_rows(counters: Sequence[CounterSeries], names: Names, span: Window) -> dict[int | None, list[TimelineRow]]:
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

    def json(self, evidence: HostEvidence) -> dict[str, Any]:
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


def sample_marks(evidence: HostEvidence, stacks: pl.DataFrame, span: Window, names: Names) -> dict[int, Marks]:
    """Return the stacks of each thread (row of Trace.threads) that has any, inside the timeline.

    `stacks` are those of PageInputs. The names of the marks are lines of the program.
    """
    known = stacks.filter((pl.col("start") < span.end) & (pl.col("end") > span.start))
    known = known.with_columns(pl.col("start", "end").clip(span.start, span.end))
    if known.is_empty():
        return {}
    number = SampleStacks.from_evidence(evidence).number
    frame = evidence.stacks["frame"].to_numpy()[evidence.own_nodes()]
    name = np.zeros(len(evidence.frames), np.int32)
    for row in np.unique(frame[known["stack"].to_numpy()]).tolist():
        name[row] = names.number(frame_text(*evidence.frames.row(row)))
    marks = {}
    for (thread,), samples in known.partition_by("thread", as_dict=True).items():
        start, end, stack = (samples[column].to_numpy() for column in ("start", "end", "stack"))
        look = np.full(len(samples), LOOKS.index("sample"), np.uint8)
        marks[int(thread)] = Marks(start, end, name[frame[stack]], look, details={"stack": number[stack]})
    return marks
