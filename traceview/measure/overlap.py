"""The time of copies and communication that overlaps compute (docs/definitions.md "Overlap")."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Intervals, Times
from traceview.measure.activity import COMMUNICATION as COMMUNICATION_CODE
from traceview.measure.activity import Activity, Copies
from traceview.measure.base import DeviceInput, Measure
from traceview.measure.contention import contention
from traceview.measure.exposure import COMMUNICATION_WORK, copy_key
from traceview.measure.queues import blocking_times
from traceview.measure.shared_work import once_per_frame
from traceview.model.analysis import EXPOSED_CAUSES
from traceview.model.columns import Table
from traceview.model.rows import CommunicationOverlap, Contention, CopyOverlap, ExposedRange
from traceview.model.trace import Trace

MAX_RANGES = 200


def copy_overlaps(given: DeviceInput) -> tuple[CopyOverlap, ...]:
    """Return one row for each (kind, memory) pair that the device copied, in the order of KINDS and MEMORIES."""
    work, size = given.activity, given.trace.operations["bytes"].to_numpy()
    return tuple(
        CopyOverlap(
            kind=kind,
            memory=memory,
            count=len(members),
            bytes=int(size[work.rows[members]].sum()),
            **_overlap(given, _union(work, members), copy_key(kind, memory)),
        )
        for kind, memory, members in Copies.from_activity(given.trace, work).groups()
    )


def communication_overlap(given: DeviceInput) -> tuple[CommunicationOverlap]:
    """Measure the device's communication kernels against its compute."""
    work = given.activity
    waits = _waiting_times(given.trace, work)
    prices = (row for row in contention(given.trace, work) if row.beside == COMMUNICATION_WORK)
    price = next(prices, None)
    return (
        CommunicationOverlap(
            count=int(np.count_nonzero(work.codes == COMMUNICATION_CODE)),
            blocking_ns=intervals.length(blocking_times(given.trace, work)),
            waiting_for_ranks_ns=None if waits is None else intervals.length(waits),
            exposed_waiting_for_ranks_ns=(
                None if waits is None else intervals.length(intervals.subtract(waits, work.compute))
            ),
            contention_ns=None if price is None else price.contention_ns,
            contention_low_ns=None if price is None else price.low_ns,
            contention_high_ns=None if price is None else price.high_ns,
            **_overlap(given, work.communication, COMMUNICATION_WORK),
        ),
    )


def exposed_ranges(given: DeviceInput) -> tuple[ExposedRange, ...]:
    """Return one row for each range and kind of work that has exposed time, the most first."""
    exposed, places, works = given.exposed, given.places, given.exposed.works
    if not len(exposed.operation):
        return ()
    ranges, of_place = _ranges_of_places(places.table)
    key = of_place[places.code[exposed.operation]] * len(works) + exposed.work
    used = np.zeros(len(ranges) * len(works), np.bool_)
    used[key] = True
    label, last = np.cumsum(used)[key] - 1, np.empty(len(places.code), np.int32)
    last[exposed.operation] = np.arange(len(key), dtype=np.int32)
    is_last = last[exposed.operation] == np.arange(len(key))
    names = [(ranges[key // len(works)], works[key % len(works)]) for key in np.flatnonzero(used).tolist()]
    count, causes = np.bincount(label[is_last], minlength=len(names)), exposed.sums(label, len(names))
    ns = causes.sum(axis=1).tolist()
    order = sorted(range(len(names)), key=lambda row: (-ns[row], names[row][0] is not None, *names[row]))
    first, rest = order[:MAX_RANGES], order[MAX_RANGES:]
    rows = [_exposed_range(*names[row], count[row], causes[row]) for row in first]
    if rest:
        rows.append(_exposed_range(f"({len(rest)} others)", "all", count[rest].sum(), causes[rest].sum(axis=0)))
    return tuple(rows)


@once_per_frame
def _ranges_of_places(table: pl.DataFrame) -> tuple[list[str | None], Times]:
    """Return the distinct ranges of a table of places, and the position of that of each row."""
    distinct, (position,) = intervals.distinct_rows([table.select("range")])
    return distinct["range"].to_list(), position


def _exposed_range(range_name: str | None, work: str, count: int, causes: Times) -> ExposedRange:
    own = dict(zip(EXPOSED_CAUSES, causes.tolist(), strict=True))
    return ExposedRange(range_name, work, int(count), exposed_ns=sum(own.values()), exposed_causes=own)


def _waiting_times(trace: Trace, work: Activity) -> Intervals | None:
    """Return when a device waits for other ranks inside its window; None if the ranks are unknown.

    A collective ends on all ranks at once, so its kernel is shortest on the rank that starts it last. Durations are
    compared, so the clocks of devices need not agree. The k-th communication kernels of the devices are one collective
    if all devices run communication kernels of the same names in the same order.
    """
    waits = _waits_by_device(trace.operations).get(work.device)
    return None if waits is None else intervals.clip(waits, work.window.start, work.window.end)


@once_per_frame
def _waits_by_device(operations: pl.DataFrame) -> dict[int, Intervals]:
    """Return the union of the waits of each device; {} if one device communicates, or the devices differ."""
    talks = operations["class"].to_physical().to_numpy() == COMMUNICATION_CODE
    columns = operations.filter(pl.Series(talks)).select("device", "start", "end", pl.col("name").to_physical())
    device, start, end, name = (columns[each].to_numpy() for each in ("device", "start", "end", "name"))
    rows = dict(intervals.rows_by_code(device))
    sequences = [name[each] for each in rows.values()]
    if len(rows) < 2 or not all(np.array_equal(sequences[0], each) for each in sequences):
        return {}
    lengths = np.stack([(end - start)[each] for each in rows.values()])
    waits = lengths - lengths.min(axis=0)
    return {
        number: intervals.union(start[each], start[each] + own, ordered=True)
        for (number, each), own in zip(rows.items(), waits, strict=True)
    }


def _union(work: Activity, members: Times) -> Intervals:
    return intervals.union(work.start[members], work.end[members], ordered=True)


def _overlap(given: DeviceInput, union: Intervals, work: str) -> dict[str, Any]:
    causes = given.exposed.by_work[work]
    busy, exposed = intervals.length(union), sum(causes.values())
    return {"busy_ns": busy, "overlapped_ns": busy - exposed, "exposed_ns": exposed, "exposed_causes": causes}


COPIES = Measure(
    Table(
        name="copies",
        title="Copies",
        note="Hidden: the part of the copying time in which compute runs.",
        row_type=CopyOverlap,
        shown=("label", "count", "bytes", "bandwidth", "busy_ns", "hidden", "exposed_ns", "because"),
    ),
    copy_overlaps,
)
FROM_OTHERS = ("waiting_for_ranks_ns", "contention_ns")
COMMUNICATION = Measure(
    Table(
        name="communication",
        title="Communication",
        row_type=CommunicationOverlap,
        shown=("count", "busy_ns", "hidden", "exposed_ns", "blocking_ns", *FROM_OTHERS, "because"),
        optional=FROM_OTHERS,
        single=True,
    ),
    communication_overlap,
)

EXPOSED_RANGES = Measure(
    Table(
        name="exposed_ranges",
        title="Exposed time by range",
        note="Copies, memsets and communication beside which nothing computes, by the NVTX range that launches them.",
        row_type=ExposedRange,
        shown=("range", "work", "count", "exposed_ns", "because"),
        first=5,
    ),
    exposed_ranges,
)
CONTENTION = Measure(
    Table(
        name="contention",
        title="The price of overlap",
        note="How much longer kernels take beside communication, or copies from and to the host and other GPUs.",
        row_type=Contention,
    ),
    lambda given: contention(given.trace, given.activity),
)
