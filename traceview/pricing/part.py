"""The part of a device's window that findings cover: its figures, with streams, for rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from traceview import intervals
from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION, COMPUTE, COPY, KERNEL, Activity
from traceview.model.devices import DeviceUse
from traceview.model.rows import StreamUse
from traceview.model.trace import Trace, Window


def use_in_steady_part(trace: Trace, use: DeviceUse, work: Activity, part: Activity) -> DeviceUse:
    """Return a device's figures in its steady part, where its work is `part`, with the tables that rules read.

    The streams have counts and lengths of work. Their gaps are measured for the window alone, so they are 0. Tables of
    other DeviceMeasures are those of the window.
    """
    if part.window == use.window:
        return use
    steady = use.steady
    streams = use.tables["streams"].with_rows(tuple(_streams(trace, use.streams, work, part)))
    figures = steady.figures() | {
        "gaps": replace(steady.gaps, frame=steady.gaps.frame.rechunk()),
        "tables": {**use.tables, **steady.tables, "streams": streams},
    }
    return replace(use, **figures)


def _streams(trace: Trace, uses: Sequence[StreamUse], work: Activity, part: Activity) -> Iterator[StreamUse]:
    """Yield the streams that work in a part of the window: their figures in the window less those outside the part."""
    before = work.clip(Window(work.window.start, part.window.start))
    # An operation without length may be the last of the window.
    after = work.clip(Window(part.window.end, work.window.end + 1))
    for use in uses:
        pieces = [_figures_outside(trace, piece, part.window, use.stream) for piece in (before, after)]
        outside = np.sum(pieces, axis=0)
        kernels, copies, operations, busy, compute, communication, copying = outside.tolist()
        if operations == use.operation_count:
            continue
        yield replace(
            use,
            kernel_count=use.kernel_count - kernels,
            copy_count=use.copy_count - copies,
            operation_count=use.operation_count - operations,
            busy_ns=use.busy_ns - busy,
            compute_ns=use.compute_ns - compute,
            communication_ns=use.communication_ns - communication,
            copy_ns=use.copy_ns - copying,
            gap_count=0,
            gap_ns=0,
            causes={},
        )


def _figures_outside(trace: Trace, work: Activity, part: Window, stream: int) -> Times:
    """Return how many kernels, copies and operations of a stream do not reach into `part`, and its ns by class."""
    rows = intervals.rows_where(work.select(trace.operations["stream"].to_numpy()) == stream)
    codes, source = work.codes[rows], work.select(trace.operations["source"].to_physical().to_numpy())[rows]
    start, end = (trace.operations[name].to_numpy()[work.rows[rows]] for name in ("start", "end"))
    own = (end <= part.start) | (start >= part.end)
    counts = [np.count_nonzero(own & chosen) for chosen in (source == KERNEL, codes == COPY, own)]
    classes = [rows, *(rows[codes == code] for code in (COMPUTE, COMMUNICATION, COPY))]
    return np.array([*counts, *(intervals.union_length(work.start, work.end, some) for some in classes)], np.int64)
