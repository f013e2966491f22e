"""What launched work waits for, how many operations are launched ahead, and what waits for communication.

docs/definitions.md "Launched work that waits".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import BEFORE_ALL, EMPTY, Intervals, Times, values_at
from traceview.measure.activity import COMMUNICATION, Activity
from traceview.measure.base import DeviceInput, Measure
from traceview.measure.shared_work import LONG, launch_rows, long_calls, once_per_frame, rows_of_devices
from traceview.measure.sums import sums_by_owner
from traceview.model.analysis import CHANGES
from traceview.model.columns import Table
from traceview.model.rows import QueuedFor, QueueLength
from traceview.model.trace import Trace, enum_texts

NEAR_END = 20_000  # ns from the end of communication to the start of what waited for it
MAX_ROWS = 20
WAITED_FOR = {"compute": "kernel", "communication": "collective"}  # by the class of the operation
PROCESS = CHANGES.index("process")


def queued_for(given: DeviceInput) -> tuple[QueuedFor, ...]:
    """Return the ns of `queued` idle time by what the launched work waits for, the longest first."""
    trace, gaps = given.trace, given.gaps.frame
    start, end, queued, changes = (gaps[name].to_numpy() for name in ("start", "end", "queued", "changes"))
    is_long = ((end - start > LONG) & (changes != PROCESS)) | gaps["before"].is_null().to_numpy()
    waits, rest = (np.flatnonzero(chosen & (queued > 0)) for chosen in (is_long, ~is_long & (changes > 0)))
    long = intervals.union(end[waits] - queued[waits], end[waits])
    next_operation = int(queued.sum()) - int(queued[waits].sum()) - int(queued[rest].sum())
    sums = Counter({("next operation", ""): next_operation})
    sums.update(_ended_before(trace, gaps.select("before", "operation")[rest], queued[rest]))
    sums.update({(row.kind, row.name): row.ns for row in _during_long(trace, long)})
    rows = (QueuedFor(kind, name, ns) for (kind, name), ns in sums.items() if ns)
    return tuple(sorted(rows, key=lambda row: (-row.ns, row.kind, row.name))[:MAX_ROWS])


def _ended_before(trace: Trace, gaps: pl.DataFrame, ns: Times) -> dict[tuple[str, str], int]:
    """Return the ns by the kind and the name of the work that ends before work of another stream or process."""
    if gaps.is_empty():
        return {}
    columns = trace.operations.select("class", "kind", "name", "process")
    work, following = (columns[gaps[side]] for side in ("before", "operation"))
    turns, same_engine = work["process"] != following["process"], work["kind"] == following["kind"]
    sums = (
        work.with_columns(turns=turns, engine=same_engine.fill_null(value=False), ns=ns)
        .select(
            pl.when("turns")
            .then(pl.lit("process"))
            .when("engine")
            .then(pl.lit("copy engine"))
            .otherwise(pl.col("class").cast(pl.String).replace(WAITED_FOR))
            .alias("waits_for"),
            pl.when("turns").then(pl.col("process").cast(pl.String)).otherwise(pl.col("name").cast(pl.String)),
            "ns",
        )
        .group_by("waits_for", pl.col("process").alias("name"))
        .agg(pl.col("ns").sum())
    )
    return {(kind, name): ns for kind, name, ns in sums.iter_rows()}


class _Workers(NamedTuple):
    """When several work, in disjoint ascending pieces. `worker` is the first of those that work in each piece."""

    times: Intervals
    worker: Times


@once_per_frame
def _working_devices(operations: pl.DataFrame) -> _Workers:
    start, end = (operations[name].to_numpy() for name in ("start", "end"))
    rows = rows_of_devices(operations).items()
    if len(rows) < 2:
        return _Workers(EMPTY, EMPTY.start)  # a device that waits has no others
    return _first_workers([(row, intervals.union(start[own], end[own], ordered=True)) for row, own in rows])


@once_per_frame
def _long_calls(api: pl.DataFrame) -> _Workers:
    calls = long_calls(api).filter(pl.col("role") != "sync")
    name, start, end = (calls[column].to_physical().to_numpy() for column in ("name", "start", "end"))
    texts = enum_texts(calls["name"])
    rows = sorted(intervals.rows_by_code(name), key=lambda each: texts[each[0]])  # the first name counts
    return _first_workers([(code, intervals.union(start[own], end[own], ordered=True)) for code, own in rows])


def _first_workers(works: Sequence[tuple[int, Intervals]]) -> _Workers:
    """Return when any of some workers works. It joins them in halves, so that many workers take little longer."""
    if len(works) < 2:
        [(number, times)] = works or [(0, EMPTY)]
        return _Workers(times, np.full(len(times.start), number))
    first, others = (_first_workers(half) for half in (works[: len(works) // 2], works[len(works) // 2 :]))
    taken = intervals.union(*first.times, ordered=True)
    free = intervals.complement(taken, BEFORE_ALL, -BEFORE_ALL)
    part, *rest = intervals.parts_in_queries(free, *others.times)
    sides = (*first.times, first.worker), (*rest, others.worker[part])
    start, end, worker = map(np.concatenate, zip(*sides, strict=True))
    order = np.argsort(start, kind="stable")
    return _Workers(Intervals(start[order], end[order]), worker[order])


def _during_long(trace: Trace, left: Intervals) -> Iterator[QueuedFor]:
    """Yield what runs during long waits: work of other GPUs, else long CUDA calls; the rest is unknown."""
    if not len(left.start):
        return
    devices, calls = _working_devices(trace.operations), _long_calls(trace.api)
    for kind, texts, work in (("device", trace.devices["id"], devices), ("call", enum_texts(trace.api["name"]), calls)):
        _, start, end = intervals.parts_in_queries(work.times, *left)
        worker = work.worker[np.searchsorted(work.times.start, start, side="right") - 1]
        ns = sums_by_owner(worker, end - start, len(texts))
        yield from (QueuedFor(kind, texts[number], int(ns[number])) for number in np.flatnonzero(ns).tolist())
        left = intervals.subtract(left, intervals.union(start, end, ordered=True))
    yield QueuedFor("unknown", "", intervals.length(left))


def blocking_times(trace: Trace, work: Activity) -> Intervals:
    """Return when communication blocks: launched work of another stream waits for it, and starts when it ends."""
    if not len(work.communication.start):
        return intervals.EMPTY
    rows = intervals.adjoining(work.nonempty_rows)
    begin, finish, stream, code = (
        trace.operations[name].to_physical().to_numpy()[rows] for name in ("start", "end", "stream", "class")
    )
    call = launch_rows(trace.operations)[rows]
    launched = np.where(call >= 0, values_at(trace.api["end"].to_numpy(), call, 0), begin)
    order = np.argsort(stream, kind="stable")
    first = np.append(True, stream[order[1:]] != stream[order[:-1]])
    ready = np.empty(len(order), np.int64)
    ready[order] = np.maximum(np.where(first, BEFORE_ALL, np.roll(finish[order], 1)), launched[order])
    talks = np.flatnonzero(code == COMMUNICATION)
    talks = talks[np.argsort(finish[talks], kind="stable")]
    waits = np.flatnonzero((code != COMMUNICATION) & (ready < begin))
    at = np.searchsorted(finish[talks], begin[waits], side="right") - 1
    waits, awaited = waits[at >= 0], talks[at[at >= 0]]
    blocks = (finish[awaited] > ready[waits]) & (stream[awaited] != stream[waits])
    blocks &= begin[waits] - finish[awaited] <= NEAR_END
    waits, awaited = waits[blocks], awaited[blocks]
    ends = intervals.union(np.maximum(ready[waits], begin[awaited]), finish[awaited])
    return intervals.intersect(ends, work.communication)


def queue_length(given: DeviceInput) -> tuple[QueueLength, ...]:
    """Return the median and the 95th percentile of the queue and of the delay of all launches."""
    queue = given.queue
    return (QueueLength(*_quantiles(queue.ahead, 0.5, 0.95), *_quantiles(queue.delay, 0.5, 0.95)),)


def _quantiles(values: NDArray[np.signedinteger[Any]], *fractions: float) -> list[int]:
    """Return the least values that these fractions of the values do not exceed; 0 without values."""
    if not len(values):
        return [0] * len(fractions)
    # The exponent and five bits of the mantissa put values into order; only those around a quantile are sorted.
    key = (values + 1).astype(np.float64).view(np.int64) >> 47
    key -= key.min()
    until, quantiles = np.cumsum(np.bincount(key)), list[int]()
    for place in np.ceil(np.multiply(fractions, len(values))).astype(np.int64) - 1:
        group = int(np.searchsorted(until, place, side="right"))
        quantiles.append(int(np.sort(values[key == group])[place - until[group]]))
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
