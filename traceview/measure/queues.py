"""What launched work waits for, how many operations are launched ahead, and what waits for communication.

docs/definitions.md "Launched work that waits".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Rows, Times, values_at
from traceview.measure.activity import COMMUNICATION, COMPUTE, COPY, Activity
from traceview.measure.base import DeviceInput, DeviceMeasure, PartContext
from traceview.measure.shared_work import DELAY_EDGES, MAX_LENGTH, launch_rows
from traceview.model.analysis import CAUSES
from traceview.model.columns import Merge, Table
from traceview.model.rows import QueuedFor, QueueLength, QueueSlice
from traceview.model.trace import CLASSES, KINDS, Trace, enum_texts

QUEUED = CAUSES.index("queued")
SCHEMA = {"kind": pl.String, "name": pl.String, "ns": pl.Int64}
LONG = 100_000  # ns; events, CUDA graphs and copies between GPUs need less to start the next operation
NEAR_END = 20_000  # ns from the end of communication to the start of what waited for it
SLICES = 20  # parts of a device's window
FIGURES = {"length": np.arange(MAX_LENGTH + 1), "delay": DELAY_EDGES}  # what a value of launch_totals stands for
FIGURE_SIZE = max(map(len, FIGURES.values()))
MERGE: Mapping[str, Merge] = {"offset_ns": "key", "value": "key", "count": "sum"}
MAX_ROWS = 20
WAITED_FOR = {COMPUTE: "kernel", COMMUNICATION: "collective", COPY: "copy"}
KINDS_BEFORE = (*(WAITED_FOR.get(code, name) for code, name in enumerate(CLASSES)), "copy engine", "next operation")
ENGINE, FOLLOWING = range(len(CLASSES), len(KINDS_BEFORE))
Row = tuple[str, str, int]  # kind, name and ns


class _Operations(NamedTuple):
    """The operations of a device that have a length, by start, also those around the window."""

    row: Rows
    start: Times
    end: Times
    stream: NDArray[np.int16]
    process: NDArray[np.int32]
    code: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    name: NDArray[np.unsignedinteger[Any]]

    @classmethod
    def of_device(cls, trace: Trace, work: Activity) -> _Operations:
        names = ("start", "end", "stream", "process", "class", "kind", "name")
        own = intervals.adjoining(work.nonempty_rows)
        columns = (trace.operations[name].to_physical() for name in names)
        filled = (column.fill_null(len(KINDS)) if column.null_count() else column for column in columns)
        return cls(work.nonempty_rows, *(column.to_numpy()[own] for column in filled))

    def last_ended(self) -> Rows:
        """Return the index of the operation that ends last among those up to each."""
        latest = np.maximum.accumulate(self.end)
        return np.maximum.accumulate(np.where(self.end == latest, np.arange(len(self.end), dtype=np.int32), 0))


def queued_for(given: DeviceInput) -> pl.DataFrame:
    """Return the ns of `queued` idle time by what the launched work waits for: kind, name and ns."""
    gaps, queued = given.idle.gaps, given.idle.causes[QUEUED]
    operations = _Operations.of_device(given.trace, given.activity)
    last_ended, before_gaps = operations.last_ended(), _BeforeGaps(given.trace, operations)
    place = np.empty(len(given.trace.operations), np.int32)
    place[operations.row] = np.arange(len(operations.row), dtype=np.int32)
    long = [np.zeros(0, np.int64)]
    for block in intervals.blocks(len(queued)):
        rows = np.flatnonzero(queued[block]) + block.start
        after = place[given.idle.operation[rows]]
        before = np.where(after > 0, last_ended[after - 1], -1)
        whole = operations.start[after] - values_at(operations.end, before, 0)
        turns = operations.process[before] != operations.process[after]  # a GPU changes between processes
        is_long = (before < 0) | ((whole > LONG) & ~turns)
        short = ~is_long
        before_gaps.add(before[short], after[short], queued[rows[short]])
        long.append(rows[is_long])
    waits = np.concatenate(long)
    left = intervals.union(gaps.end[waits] - queued[waits], gaps.end[waits])
    rows_of = [*before_gaps.rows(), *_during_long(given.trace, given.activity.device, left)]
    frame = pl.DataFrame(rows_of, schema=SCHEMA, orient="row")
    return frame.group_by("kind", "name").agg(pl.col("ns").sum()).filter(pl.col("ns") > 0).sort("kind", "name")


class _BeforeGaps:
    """Sums of what ran before gaps: the GPU then takes the next operation of its stream, or one that depends on it.

    `ns` has a row for each of KINDS_BEFORE and a column for each name of operations. `processes` has the ns by process.
    """

    def __init__(self, trace: Trace, operations: _Operations) -> None:
        self.operations, self.texts = operations, enum_texts(trace.operations["name"])
        self.ns = np.zeros((len(KINDS_BEFORE), len(self.texts)), np.int64)
        self.processes: Counter[int] = Counter()

    def add(self, before: Rows, after: Rows, ns: Times) -> None:
        """Add the ns of some gaps; `before` and `after` are the operations around them."""
        work = self.operations
        turns = work.process[before] != work.process[after]
        for process in np.unique(work.process[before[turns]]).tolist():
            self.processes[process] += int(ns[turns & (work.process[before] == process)].sum())
        if turns.any():
            before, after, ns = before[~turns], after[~turns], ns[~turns]
        kind = work.code[before].astype(np.int64)
        kind[(kind == COPY) & (work.kind[before] == work.kind[after])] = ENGINE
        kind[work.stream[before] == work.stream[after]] = FOLLOWING
        np.add.at(self.ns.ravel(), kind * self.ns.shape[1] + work.name[before], ns)

    def rows(self) -> Iterator[Row]:
        """Yield the rows of SCHEMA; several have one kind and name."""
        for kind, name in np.argwhere(self.ns).tolist():
            yield KINDS_BEFORE[kind], "" if kind == FOLLOWING else self.texts[name], int(self.ns[kind, name])
        yield from (("process", str(process), ns) for process, ns in self.processes.items())


def _during_long(trace: Trace, device: int, left: Intervals) -> Iterator[Row]:
    """Yield rows of SCHEMA for long waits: work of other GPUs, else long CUDA calls; the rest is unknown."""
    if not len(left.start):
        return
    start, end = (trace.operations[name].to_numpy() for name in ("start", "end"))
    owner = trace.operations["device"].to_numpy()
    others = [(str(trace.devices["id"][row]), owner == row) for row in range(len(trace.devices)) if row != device]
    works = [("device", name, intervals.union(start[own], end[own])) for name, own in others]
    calls = trace.api.filter((pl.col("end") - pl.col("start") > LONG) & (pl.col("role") != "sync"))
    texts = enum_texts(calls["name"])
    for code in np.unique(calls["name"].to_physical().to_numpy()).tolist():
        own = calls.filter(calls["name"].to_physical() == code)
        works.append(("call", texts[code], intervals.union(own["start"].to_numpy(), own["end"].to_numpy())))
    for kind, name, work in works:
        ns = intervals.overlap_length(work, left)
        left = intervals.subtract(left, work)
        yield kind, name, ns
    yield "unknown", "", intervals.length(left)


def blocking_times(trace: Trace, work: Activity) -> Intervals:
    """Return when communication blocks: launched work of another stream waits for it, and starts when it ends."""
    if not len(work.communication.start):
        return intervals.EMPTY
    operations = _Operations.of_device(trace, work)
    call = launch_rows(trace.operations)[operations.row]
    launched = np.where(call >= 0, values_at(trace.api["end"].to_numpy(), call, 0), operations.start)
    order = np.lexsort((operations.start, operations.stream))
    stream, end = operations.stream[order], operations.end[order]
    first = np.append(True, stream[1:] != stream[:-1])
    previous = np.where(first, np.iinfo(np.int64).min, np.roll(end, 1))
    ready = np.empty(len(order), np.int64)
    ready[order] = np.maximum(previous, launched[order])
    talks = np.flatnonzero(operations.code == COMMUNICATION)
    talks = talks[np.argsort(operations.end[talks], kind="stable")]
    waits = np.flatnonzero((operations.code != COMMUNICATION) & (ready < operations.start))
    at = np.searchsorted(operations.end[talks], operations.start[waits], side="right") - 1
    waits, awaited = waits[at >= 0], talks[at[at >= 0]]
    blocks = (operations.end[awaited] > ready[waits]) & (operations.stream[awaited] != operations.stream[waits])
    blocks &= operations.start[waits] - operations.end[awaited] <= NEAR_END
    waits, awaited = waits[blocks], awaited[blocks]
    begin = np.maximum(ready[waits], operations.start[awaited])
    return intervals.intersect(intervals.union(begin, operations.end[awaited]), work.communication)


def launch_totals(given: DeviceInput, slices: int = 1) -> pl.DataFrame:
    """Return how many launches have each queue length and delay, by the slice of the device's window they begin in.

    Columns: offset_ns (of the slice, from the start of the window), figure ("length" or "delay"), value (a place in
    FIGURES), count.
    """
    queue, window = given.queue, given.whole_window
    place = np.zeros(1, np.int64)
    if slices > 1:
        place = np.clip((queue.moment - window.start) * slices // max(window.length, 1), 0, slices - 1)
    frames = []
    for figure, value in zip(FIGURES, (queue.ahead, queue.delay), strict=True):
        counts = np.bincount(place * FIGURE_SIZE + value)
        rows = np.flatnonzero(counts)
        offset = rows // FIGURE_SIZE * window.length // slices
        frames.append(
            pl.DataFrame(
                {"offset_ns": offset, "figure": figure, "value": rows % FIGURE_SIZE, "count": counts[rows]},
                schema={"offset_ns": pl.Int64, "figure": pl.String, "value": pl.Int64, "count": pl.Int64},
            )
        )
    return pl.concat(frames)


def _quantiles(parts: Mapping[Any, pl.DataFrame], part: tuple[Any, ...], *fractions: float) -> list[int]:
    """Return quantiles of the part with this key, whose last item is the figure; 0 without launches."""
    if part not in parts:
        return [0] * len(fractions)
    value, until = (parts[part][name].to_numpy() for name in ("value", "until"))
    quantiles: list[int] = FIGURES[str(part[-1])][
        value[np.searchsorted(until, np.multiply(fractions, until[-1]))]
    ].tolist()
    return quantiles


def _parts(totals: pl.DataFrame, *keys: str) -> dict[tuple[Any, ...], pl.DataFrame]:
    """Return launch_totals by these columns, with the number of launches up to each value."""
    until = pl.col("count").cum_sum().over(keys).alias("until")
    return totals.sort("offset_ns", "value").with_columns(until).partition_by(keys, as_dict=True)


def _queue_rows(_context: PartContext, totals: pl.DataFrame) -> tuple[QueueLength, ...]:
    parts = _parts(totals, "figure")
    return (QueueLength(*(each for figure in FIGURES for each in _quantiles(parts, (figure,), 0.5, 0.95))),)


def _slice_rows(_context: PartContext, totals: pl.DataFrame) -> tuple[QueueSlice, ...]:
    """Return the medians of each slice that has launches, in the order of time."""
    parts = _parts(totals, "offset_ns", "figure")
    medians = {key: _quantiles(parts, key, 0.5) for key in parts}
    return tuple(
        QueueSlice(offset, own["until"][-1], *medians[offset, "length"], *medians[offset, "delay"])
        for (offset, figure), own in parts.items()
        if figure == "length"
    )


def _queued_rows(_context: PartContext, totals: pl.DataFrame) -> tuple[QueuedFor, ...]:
    longest = totals.sort("ns", "kind", "name", descending=[True, False, False]).head(MAX_ROWS)
    return tuple(QueuedFor(*row) for row in longest.select("kind", "name", "ns").iter_rows())


QUEUED_FOR = DeviceMeasure(
    Table(
        name="queued_for",
        title="What launched work waits for",
        row_type=QueuedFor,
        note="While the GPU is idle.",
        in_json=False,  # it is in gaps
    ),
    _queued_rows,
    totals=queued_for,
)
QUEUE_LENGTH = DeviceMeasure(
    Table(
        name="queue_length",
        title="Operations launched ahead",
        note="Many: the GPU limits the speed. Few: the GPU waits for its launches.",
        row_type=QueueLength,
        single=True,
    ),
    _queue_rows,
    totals=launch_totals,
    merge=MERGE,
)
QUEUE_OVER_TIME = DeviceMeasure(
    Table(
        name="queue_over_time",
        title="Operations launched ahead over time",
        note="Medians of the launches in each twentieth of the time.",
        row_type=QueueSlice,
    ),
    _slice_rows,
    totals=partial(launch_totals, slices=SLICES),
    merge=MERGE,
)
