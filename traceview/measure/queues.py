"""What launched work waits for, how many operations are launched ahead, and what waits for communication.

docs/definitions.md "Launched work that waits".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Rows, Times, values_at
from traceview.measure.activity import COMMUNICATION, COMPUTE, COPY, Activity, device_activity
from traceview.measure.base import DeviceInput, Measure
from traceview.measure.shared_work import DELAY_EDGES, MAX_LENGTH, launch_rows
from traceview.model.analysis import CAUSES
from traceview.model.columns import Table
from traceview.model.rows import QueuedFor, QueueLength, QueueSlice
from traceview.model.trace import CLASSES, KINDS, Trace, enum_texts

QUEUED = CAUSES.index("queued")
LONG = 100_000  # ns; events, CUDA graphs and copies between GPUs need less to start the next operation
NEAR_END = 20_000  # ns from the end of communication to the start of what waited for it
SLICES = 20  # slices of equal length of a window
LENGTHS = np.arange(MAX_LENGTH + 1)
MAX_ROWS = 20
WAITED_FOR = {COMPUTE: "kernel", COMMUNICATION: "collective", COPY: "copy"}
KINDS_BEFORE = (*(WAITED_FOR.get(code, name) for code, name in enumerate(CLASSES)), "copy engine", "next operation")
ENGINE, FOLLOWING = range(len(CLASSES), len(KINDS_BEFORE))


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
        own = trace.operations.select("start", "end", "stream", "process", "class", "kind", "name")
        rows = intervals.adjoining(work.nonempty_rows)
        columns = (column.to_physical() for column in own[rows])
        filled = (column.fill_null(len(KINDS)) if column.null_count() else column for column in columns)
        return cls(work.nonempty_rows, *(column.to_numpy() for column in filled))

    def last_ended(self) -> Rows:
        """Return the index of the operation that ends last among those up to each."""
        latest = np.maximum.accumulate(self.end)
        return np.maximum.accumulate(np.where(self.end == latest, np.arange(len(self.end), dtype=np.int32), 0))


def queued_for(given: DeviceInput) -> tuple[QueuedFor, ...]:
    """Return the ns of `queued` idle time by what the launched work waits for, the longest first."""
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
    sums = Counter[tuple[str, str]]()
    for row in (*before_gaps.rows(), *_during_long(given.trace, given.activity.device, left)):
        sums[row.kind, row.name] += row.ns
    rows = (QueuedFor(kind, name, ns) for (kind, name), ns in sums.items() if ns)
    return tuple(sorted(rows, key=lambda row: (-row.ns, row.kind, row.name))[:MAX_ROWS])


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

    def rows(self) -> Iterator[QueuedFor]:
        """Yield the sums; several have one kind and name."""
        for kind, name in np.argwhere(self.ns).tolist():
            yield QueuedFor(KINDS_BEFORE[kind], "" if kind == FOLLOWING else self.texts[name], int(self.ns[kind, name]))
        yield from (QueuedFor("process", str(process), ns) for process, ns in self.processes.items())


def _during_long(trace: Trace, device: int, left: Intervals) -> Iterator[QueuedFor]:
    """Yield what runs during long waits: work of other GPUs, else long CUDA calls; the rest is unknown."""
    if not len(left.start):
        return
    complete = replace(trace, window=None)
    others = ((row, device_activity(complete, row)) for row in range(len(trace.devices)) if row != device)
    works = [("device", str(trace.devices["id"][row]), work.busy) for row, work in others if work is not None]
    calls = trace.api.filter((pl.col("end") - pl.col("start") > LONG) & (pl.col("role") != "sync"))
    texts = enum_texts(calls["name"])
    for code in np.unique(calls["name"].to_physical().to_numpy()).tolist():
        own = calls.filter(calls["name"].to_physical() == code)
        works.append(("call", texts[code], intervals.union(own["start"].to_numpy(), own["end"].to_numpy())))
    for kind, name, work in works:
        inside = intervals.intersect(left, work)
        if ns := intervals.length(inside):
            left = intervals.subtract(left, inside)
            yield QueuedFor(kind, name, ns)
    yield QueuedFor("unknown", "", intervals.length(left))


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


def queue_length(given: DeviceInput) -> tuple[QueueLength, ...]:
    """Return the median and the 95th percentile of the queue and of the delay of all launches."""
    queue = given.queue
    lengths = _quantiles(queue.ahead, LENGTHS, 0.5, 0.95)
    return (QueueLength(*lengths, *_quantiles(queue.delay, DELAY_EDGES, 0.5, 0.95)),)


def queue_over_time(given: DeviceInput) -> tuple[QueueSlice, ...]:
    """Return the medians of each slice of the window that has launches, in the order of time."""
    queue, window = given.queue, given.activity.window
    place = np.clip((queue.moment - window.start) * SLICES // max(window.length, 1), 0, SLICES - 1)
    edges = np.searchsorted(place, np.arange(SLICES + 1)).tolist()  # the moments ascend
    return tuple(
        QueueSlice(
            number * window.length // SLICES,
            stop - first,
            *_quantiles(queue.ahead[first:stop], LENGTHS, 0.5),
            *_quantiles(queue.delay[first:stop], DELAY_EDGES, 0.5),
        )
        for number, (first, stop) in enumerate(pairwise(edges))
        if stop > first
    )


def _quantiles(places: NDArray[np.int16], values: Times, *fractions: float) -> list[int]:
    """Return quantiles of the `values` at some places; 0 without places."""
    if not len(places):
        return [0] * len(fractions)
    until = np.cumsum(np.bincount(places))
    quantiles: list[int] = values[np.searchsorted(until, np.multiply(fractions, until[-1]))].tolist()
    return quantiles


QUEUED_FOR = Measure(
    Table(
        name="queued_for",
        title="What launched work waits for",
        row_type=QueuedFor,
        note="While the GPU is idle.",
        in_json=False,  # it is in gaps
    ),
    queued_for,
    "window",
)
QUEUE_LENGTH = Measure(
    Table(
        name="queue_length",
        title="Operations launched ahead",
        note="Many: the GPU limits the speed. Few: the GPU waits for its launches.",
        row_type=QueueLength,
        single=True,
    ),
    queue_length,
    "window",
)
QUEUE_OVER_TIME = Measure(
    Table(
        name="queue_over_time",
        title="Operations launched ahead over time",
        note="Medians of the launches in each twentieth of the time.",
        row_type=QueueSlice,
    ),
    queue_over_time,
    "window",
)
