"""Copies run on the stream of the kernels.

Symptom: exposed h2d or d2h copies from pinned memory on a stream that also computes.
Cause: the operations of a stream run one after the other, so a copy cannot overlap the kernels of its own stream.
Remedy: a copy stream and a prefetch.

Claims the exposed time of these copies, at most the compute that can hide it. Pageable copies belong to
`pageable_copies`. A stream with less than half of the busiest stream's compute belongs to `exposed_copies`, because the
kernels of other streams can hide its copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from traceview import intervals
from traceview.model.analysis import DeviceUse
from traceview.model.sums import Counts
from traceview.model.trace import KINDS, MEMORIES
from traceview.model.units import duration, quantity, size
from traceview.pricing.accounts import copy_key
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, Rule
from traceview.pricing.claims import Collected, ExposedClaim, TimeGroup
from traceview.pricing.texts import join_words

COPY_KINDS = ("h2d", "d2h")


class _Sums(NamedTuple):
    """Copies on streams of kernels: their number by stream, their bytes, those of results, and exposed ns."""

    streams: Counts
    bytes: int
    results: int
    exposed: int


def _computing_streams(use: DeviceUse) -> dict[int, str]:
    """Return the labels of the streams with at least half of the busiest stream's compute."""
    most = use.compute_ns
    return {each.stream: each.label for each in use.streams if 0 < most <= 2 * each.compute_ns}


def _collect(part: CapturePart, device: DevicePart) -> Collected[_Sums]:
    """Group the times of the copies on these streams."""
    work, operations, copies = device.activity, part.trace.operations, device.copies
    kinds = np.isin(copies.kind, [KINDS.index(name) for name in COPY_KINDS])
    candidates = copies.members[kinds & (copies.memory != MEMORIES.index("pageable"))]
    stream = operations["stream"].to_numpy()[work.rows[candidates]]
    shared = np.isin(stream, list(_computing_streams(device.use)))
    chosen = candidates[shared]
    within = intervals.union(work.start[chosen], work.end[chosen], ordered=True)
    rows = work.rows[chosen]
    size, kind = operations["bytes"].to_numpy()[rows], operations["kind"].to_physical().to_numpy()[rows]
    sums = _Sums(
        streams=Counts.from_values(stream[shared].astype(np.int64)),
        bytes=int(size.sum()),
        results=int(size[kind == KINDS.index("d2h")].sum()),
        exposed=intervals.length(intervals.subtract(within, work.compute)),
    )
    return Collected(sums, {"copies": TimeGroup(within)})


def _decide(facts: CaptureFacts, sums: Mapping[int, _Sums]) -> Iterator[FindingDraft]:
    """Yield one finding for each device whose copies queue behind its kernels."""
    for device in facts.devices:
        if len(sums[device.row].streams.values):
            yield _draft(device, sums[device.row])


def _draft(device: DeviceFacts, sums: _Sums) -> FindingDraft:
    computing = _computing_streams(device.use)
    hideable = device.use.compute_to_hide(COPY_KINDS)
    keys = tuple(copy_key(kind, memory) for kind in COPY_KINDS for memory in MEMORIES if memory != "pageable")
    values = {
        "copies": quantity(int(sums.streams.counts.sum()), "copy", "copies"),
        "size": size(sums.bytes),
        "streams": join_words([computing[stream] for stream in sums.streams.values.tolist()][:3]),
        "limit": f"; {duration(hideable)} of compute can hide them" if sums.exposed > hideable else "",
    }
    case = "results" if 2 * sums.results > sums.bytes else ""
    return FindingDraft("shared_stream", device, (ExposedClaim(keys, "copies"),), values, case, at_most=hideable)


shared_stream = Rule("shared_stream", _decide, _collect, place=150)
