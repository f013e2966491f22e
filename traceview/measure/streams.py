"""The work and the idle gaps of each stream of a device (docs/definitions.md "Identity" and "Idle gaps").

The idle gaps of a stream lie between its first and last operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import BEFORE_ALL, Rows, Times
from traceview.measure.activity import COMMUNICATION, COMPUTE, COPY, KERNEL, Activity
from traceview.measure.base import DeviceInput, Measure
from traceview.measure.rates import parallelism
from traceview.measure.shared_work import codes_of
from traceview.model.columns import Table
from traceview.model.rows import StreamUse
from traceview.model.trace import CLASSES, Trace

MIN_PURPOSE = 0.1  # share of the stream's work from which a class of it is named
COPY_PURPOSES = {"h2d": "copy in", "d2h": "copy out"}
TIMES_OF_CLASSES = {"compute_ns": COMPUTE, "communication_ns": COMMUNICATION, "copy_ns": COPY}


class StreamWork(NamedTuple):
    """The work of a device by stream and start: that of `streams[i]` is `edges[i]` to `edges[i + 1]`.

    `rows` are those of Trace.operations, and `reach` is when the stream's work before each has ended.
    """

    streams: list[int]
    edges: Times
    rows: Rows
    start: Times
    end: Times
    codes: NDArray[np.uint8]
    reach: Times

    @classmethod
    def of_device(cls, trace: Trace, work: Activity) -> StreamWork:
        """Sort the work of a device once by stream."""
        stream = work.select(trace.operations["stream"].to_numpy())
        counts = np.bincount(stream)
        streams = np.flatnonzero(counts)
        edges = np.append(0, np.cumsum(counts[streams]))
        order = slice(None) if len(streams) < 2 else np.argsort(stream, kind="stable")
        start, end = work.start[order], work.end[order]
        until = end
        if not (splits := end > start).all():  # work without length splits no gap, unless it is the first of its stream
            splits[edges[:-1]] = True
            until = np.where(splits, end, BEFORE_ALL)
        reach = np.empty(len(until), np.int64)
        reach[1:] = until[:-1]
        reach[edges[:-1]] = BEFORE_ALL
        overlaps = np.searchsorted(edges, np.flatnonzero(until[1:] < until[:-1]), side="right") - 1
        for number in np.unique(overlaps).tolist():
            own = slice(*edges[number : number + 2].tolist())
            reach[own] = np.maximum.accumulate(reach[own])
        return cls(streams.tolist(), edges, work.rows[order], start, end, work.codes[order], reach)

    def figures(self, trace: Trace) -> dict[int, dict[str, Any]]:
        """Return the numbers and bytes of each stream's work, and its ns: busy, and by class."""
        source, size = codes_of(trace.operations, "source"), trace.operations["bytes"].to_numpy()
        slices = (slice(*pair) for pair in pairwise(self.edges.tolist()))
        return {
            stream: self._figures(own, source[self.rows[own]], size[self.rows[own]])
            for stream, own in zip(self.streams, slices, strict=True)
        }

    def _figures(self, own: slice, source: NDArray[np.uint8], size: Times) -> dict[str, Any]:
        codes, start, end, reach = self.codes[own], self.start[own], self.end[own], self.reach[own]
        ns = np.zeros(len(CLASSES), np.int64)
        np.add.at(ns, codes, end - start)
        if (start < reach).any():  # operations overlap
            for code in TIMES_OF_CLASSES.values():
                ns[code] = intervals.length(intervals.union(start[codes == code], end[codes == code], ordered=True))
        return {
            "kernel_count": int(np.count_nonzero(source == KERNEL)),
            "copy_count": int(np.count_nonzero(codes == COPY)),
            "operation_count": len(codes),
            "bytes": int(size[codes == COPY].sum()),
            "busy_ns": int(np.maximum(end - np.maximum(start, reach), 0).sum()),
            **{name: int(ns[code]) for name, code in TIMES_OF_CLASSES.items()},
        }

    def gaps(self) -> tuple[Times, Times]:
        """Return the number and the ns of the gaps of each stream.

        Work without length neither splits nor ends a gap, unless it is the first or last of its stream.
        """
        begins = self.start > self.reach
        begins[self.edges[:-1]] = False
        if not (ends := self.end > self.start).all():
            ends[self.edges[1:] - 1] = True
            begins &= ends
        length = np.where(begins, self.start - self.reach, 0)
        return np.add.reduceat(begins, self.edges[:-1], dtype=np.int64), np.add.reduceat(length, self.edges[:-1])


def stream_uses(given: DeviceInput) -> tuple[StreamUse, ...]:
    """Return one row for each stream that worked in the window, by (process, context, stream id)."""
    trace, work = given.trace, StreamWork.of_device(given.trace, given.activity)
    (count, total), named = work.gaps(), trace.streams.rows(named=True)
    uses = (
        StreamUse(
            stream=stream,
            id=named[stream]["stream_id"],
            process_id=named[stream]["process"],
            context_id=named[stream]["context"],
            label=named[stream]["label"],
            purpose=_purpose(trace, work.rows[slice(*work.edges[number : number + 2].tolist())], figures),
            **figures,
            gap_count=int(count[number]),
            gap_ns=int(total[number]),
        )
        for number, (stream, figures) in enumerate(work.figures(trace).items())
    )
    return tuple(sorted(uses, key=attrgetter("process_id", "context_id", "id")))


def _purpose(trace: Trace, rows: Rows, figures: Mapping[str, Any]) -> str:
    """Return what a stream is for: the classes of work that take much of its time, and which copies or ranks."""
    whole = sum(figures[name] for name in TIMES_OF_CLASSES)
    classes = sorted(
        (name for name in TIMES_OF_CLASSES if figures[name] > MIN_PURPOSE * whole), key=lambda name: -figures[name]
    )
    words = []
    for name in classes:
        if name == "compute_ns":
            words.append("compute")
        elif name == "communication_ns":
            groups = trace.sizes.messages.filter(pl.col("operation").is_in(rows))["group"].unique().to_list()
            named = {parallelism(group) for group in groups}
            [only] = named if len(named) == 1 else [None]
            words.append(f"communication ({only})" if only else "communication")
        else:
            kinds = trace.operations["kind"][rows].drop_nulls().unique().to_list()
            words.append(COPY_PURPOSES.get(kinds[0], "copy") if len(kinds) == 1 else "copy")
    return " and ".join(words)


STREAMS = Measure(
    Table(
        name="streams",
        title="Streams",
        row_type=StreamUse,
        shown=(
            "label",
            "purpose",
            "process_id",
            "kernel_count",
            "copy_count",
            "busy_ns",
            "compute_ns",
            "communication_ns",
            "copy_ns",
            "gap_count",
            "gap_ns",
        ),
    ),
    stream_uses,
    "window",
)
