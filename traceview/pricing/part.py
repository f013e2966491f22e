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


def use_in_steady_part(trace: Trace, use: DeviceUse, work: Activity, part: Activity) -> DeviceUse:
    """Return a device's figures in its steady part, where its work is `part`, with the tables that rules read.

    The streams have counts and lengths of work. Their gaps are measured for the window alone, so they are 0.
    """
    if part.window == use.window:
        return use
    steady = use.steady
    rows = {
        "copies": steady.copies,
        "communication": (steady.communication,),
        "streams": tuple(_streams(trace, use.streams, work, part)),
    }
    return replace(
        use,
        window=steady.window,
        kernel_count=steady.kernel_count,
        busy_ns=steady.busy_ns,
        compute_ns=steady.compute_ns,
        communication_ns=steady.communication_ns,
        idle_ns=steady.idle_ns,
        gaps=replace(steady.gaps, frame=steady.gaps.frame.rechunk()),
        tables={name: use.tables[name].with_rows(table_rows) for name, table_rows in rows.items()},
    )


def _streams(trace: Trace, uses: Sequence[StreamUse], work: Activity, part: Activity) -> Iterator[StreamUse]:
    """Yield the streams that work in a part of the window: their lengths in the window less those outside the part."""
    stream, source = (trace.operations[name].to_physical().to_numpy() for name in ("stream", "source"))
    own, size = part.select(stream), len(trace.streams)
    kernels = np.bincount(own[part.select(source) == KERNEL], minlength=size).tolist()
    copies = np.bincount(own[part.codes == COPY], minlength=size).tolist()
    operations = np.bincount(own, minlength=size).tolist()
    before = work.clip(Window(work.window.start, part.window.start))
    after = work.clip(Window(part.window.end, work.window.end))
    for use in uses:
        if not operations[use.stream]:
            continue
        outside = _lengths(before, stream, use.stream) + _lengths(after, stream, use.stream)
        busy, compute, communication, copying = outside.tolist()
        yield replace(
            use,
            kernel_count=kernels[use.stream],
            copy_count=copies[use.stream],
            operation_count=operations[use.stream],
            busy_ns=use.busy_ns - busy,
            compute_ns=use.compute_ns - compute,
            communication_ns=use.communication_ns - communication,
            copy_ns=use.copy_ns - copying,
            gap_count=0,
            gap_ns=0,
            causes={},
        )


def _lengths(work: Activity, stream: NDArray[np.int16], index: int) -> Times:
    """Return the ns of all work of a stream, and of its compute, communication and copies."""
    rows = intervals.rows_where(work.select(stream) == index)
    codes = work.codes[rows]
    classes = [rows, *(rows[codes == code] for code in (COMPUTE, COMMUNICATION, COPY))]
    return np.array([intervals.union_length(work.start, work.end, some) for some in classes], np.int64)
