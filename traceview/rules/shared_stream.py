"""Copies run on the stream of the kernels.

Symptom: exposed h2d or d2h copies from pinned memory on a stream that also computes.
Cause: the operations of a stream run one after the other, so a copy cannot overlap the kernels of its own stream.
Remedy: a copy stream and a prefetch.

Claims the exposed time of these copies, at most the compute that can hide it. Pageable copies belong to
`pageable_copies`. A stream with less than half of the busiest stream's compute belongs to `exposed_copies`, because the
kernels of other streams can hide its copies.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from traceview import intervals
from traceview.model.analysis import DeviceUse
from traceview.model.trace import KINDS, MEMORIES
from traceview.model.units import duration, quantity, size, verb
from traceview.pricing.accounts import copy_key
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import TimeClaim
from traceview.pricing.texts import join_words

COPY_KINDS = ("h2d", "d2h")


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield a finding if copies queue behind kernels of their own stream."""
    work, copies, computing = device.activity, device.copies, _computing_streams(device.use)
    kinds = np.isin(copies.kind, [KINDS.index(name) for name in COPY_KINDS])
    members = copies.members[kinds & (copies.memory != MEMORIES.index("pageable"))]
    stream = capture.trace.operations["stream"].to_numpy()[work.rows[members]]
    chosen = np.isin(stream, list(computing))
    members, stream = members[chosen], stream[chosen]
    if len(members) == 0:
        return
    copying = intervals.union(work.start[members], work.end[members], ordered=True)
    exposed, hideable = (
        intervals.length(intervals.subtract(copying, work.compute)),
        device.use.compute_to_hide(COPY_KINDS),
    )
    rows = capture.trace.operations.select("bytes", "kind")[work.rows[members]]
    total, results = int(rows["bytes"].sum()), int(rows.filter(pl.col("kind") == "d2h")["bytes"].sum())
    values = {
        "copies": quantity(len(members), "copy", "copies"),
        "run": verb(len(members), "run"),
        "size": size(total),
        "streams": join_words([computing[row] for row in np.unique(stream).tolist()][:3]),
        "limit": f"; {duration(hideable)} of compute can hide them" if exposed > hideable else "",
    }
    keys = tuple(copy_key(kind, memory) for kind in COPY_KINDS for memory in MEMORIES if memory != "pageable")
    case = "results" if 2 * results > total else ""
    yield FindingDraft("shared_stream", device, (TimeClaim(keys, copying),), values, case, at_most=hideable)


def _computing_streams(use: DeviceUse) -> dict[int, str]:
    """Return the labels of the streams with at least half of the busiest stream's compute."""
    most = use.compute_ns
    return {each.stream: each.label for each in use.streams if 0 < most <= 2 * each.compute_ns}


shared_stream = Rule("shared_stream", find)
