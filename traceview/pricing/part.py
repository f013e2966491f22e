"""The part of a device's window that findings cover: its figures, with streams, for rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION, COMPUTE, COPY, KERNEL, Activity
from traceview.model.analysis import DeviceUse
from traceview.model.rows import StreamUse
from traceview.model.trace import Trace, Window


def steady_use(use: DeviceUse, streams: tuple[StreamUse, ...]) -> DeviceUse:
    """Return a device's figures in its steady part, with these rows for its streams there."""
    steady = use.steady
    figures = steady.figures() | {
        "tables": {**use.tables, **steady.tables, "streams": use.tables["streams"].with_rows(streams)},
    }
    return replace(use, **figures)


def streams_in_part(trace: Trace, uses: Sequence[StreamUse], work: Activity, part: Activity) -> Iterator[StreamUse]:
    """Yield the streams that work in a part of the window: their figures in the window less those outside the part.

    Their gaps are measured for the window alone, so they are 0.
    """
    if part.window == work.window:
        yield from uses
        return
    before = work.clip(Window(work.window.start, part.window.start))
    # An operation without length may be the last of the window.
    after = work.clip(Window(part.window.end, work.window.end + 1))
    pieces = [(piece, ~reach_into(trace, piece, part.window)) for piece in (before, after)]
    for use in uses:
        outside = np.sum([stream_figures(trace, *piece, use.stream) for piece in pieces], axis=0)
        whole = [use.kernel_count, use.copy_count, use.operation_count]
        whole += [use.busy_ns, use.compute_ns, use.communication_ns, use.copy_ns]
        yield from steady_stream(use, np.array(whole, np.int64) - outside)


def steady_stream(use: StreamUse, inside: Times) -> Iterator[StreamUse]:
    """Yield a stream with its figures in a part (see stream_figures), if it works there."""
    kernels, copies, operations, busy, compute, communication, copying = inside.tolist()
    if operations:
        yield replace(
            use,
            kernel_count=kernels,
            copy_count=copies,
            operation_count=operations,
            busy_ns=busy,
            compute_ns=compute,
            communication_ns=communication,
            copy_ns=copying,
            gap_count=0,
            gap_ns=0,
            causes={},
        )


def reach_into(trace: Trace, work: Activity, part: Window) -> NDArray[np.bool_]:
    """Return which operations of a device reach into a part of its window."""
    start, end = (trace.operations[name].to_numpy()[work.rows] for name in ("start", "end"))
    inside: NDArray[np.bool_] = (end > part.start) & (start < part.end)
    return inside


def stream_figures(trace: Trace, work: Activity, counted: NDArray[np.bool_], stream: int) -> Times:
    """Return the numbers of kernels, copies and operations of a stream, and its ns: busy, by class.

    `counted` marks the operations of `work` that count; the times are those of all of its work.
    """
    rows = intervals.rows_where(work.select(trace.operations["stream"].to_numpy()) == stream)
    codes, source = work.codes[rows], work.select(trace.operations["source"].to_physical().to_numpy())[rows]
    own = counted[rows]
    counts = [np.count_nonzero(own & chosen) for chosen in (source == KERNEL, codes == COPY, own)]
    classes = [rows, *(rows[codes == code] for code in (COMPUTE, COMMUNICATION, COPY))]
    return np.array([*counts, *(intervals.union_length(work.start, work.end, some) for some in classes)], np.int64)
