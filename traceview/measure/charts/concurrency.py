"""Which streams of a device were busy at the same time (docs/metrics.md "Charts")."""

from __future__ import annotations

import numpy as np

from traceview import intervals
from traceview.intervals import Coverage, Intervals
from traceview.model.analysis import DeviceUse, StreamUse
from traceview.model.charts import StreamsAtOnce
from traceview.model.trace import Trace

MOST_STREAMS = 16


def streams_at_once(trace: Trace, device: DeviceUse, most: int = MOST_STREAMS) -> StreamsAtOnce:
    """Measure every two of a device's `most` busiest streams against each other, inside its window."""
    chosen = sorted(device.streams, key=lambda use: (-use.busy_ns, use.stream))[:most]
    unions = _unions(trace, device, chosen)
    together = np.diag([intervals.length(union) for union in unions]).astype(np.int64)
    prepared = [Coverage.of(union) for union in unions]
    for left in range(len(unions)):
        for right in range(left):
            # Few intervals are looked up among many: a copy stream costs next to nothing beside a compute stream.
            few, many = sorted((left, right), key=lambda index: len(unions[index].start))
            common = int(prepared[many].between(unions[few].start, unions[few].end).sum())
            together[left, right] = together[right, left] = common
    return StreamsAtOnce(
        streams=tuple(use.stream for use in chosen),
        together_ns=tuple(tuple(int(ns) for ns in row) for row in together),
        left_out=len(device.streams) - len(chosen),
    )


def _unions(trace: Trace, device: DeviceUse, chosen: list[StreamUse]) -> list[Intervals]:
    stream = trace.operations["stream"].to_numpy()
    start, end = trace.operations["start"].to_numpy(), trace.operations["end"].to_numpy()
    found = []
    for use in chosen:
        rows = np.flatnonzero(stream == use.stream)
        union = intervals.union(start[rows], end[rows], ordered=True)
        found.append(intervals.clip(union, device.window.start, device.window.end))
    return found
