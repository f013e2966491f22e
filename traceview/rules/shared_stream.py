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
import polars as pl

from traceview import intervals
from traceview.intervals import Intervals
from traceview.model.analysis import DeviceUse
from traceview.model.sums import KeyedSums
from traceview.model.trace import KINDS, MEMORIES
from traceview.model.units import duration, quantity, size, verb
from traceview.pricing.accounts import copy_key
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, OldRule
from traceview.pricing.claims import Collected, ExposedClaim, TimeGroup
from traceview.pricing.texts import join_words

COPY_KINDS = ("h2d", "d2h")


class _SharedStreamSums(NamedTuple):
    """Copies by stream: their number, their bytes, and those of results (columns count, bytes and results).

    `exposed` has the ns in which nothing computes, by the streams that copy then.
    """

    streams: KeyedSums
    exposed: dict[str, int]


def _computing_streams(use: DeviceUse) -> dict[int, str]:
    """Return the labels of the streams with at least half of the busiest stream's compute."""
    most = use.compute_ns
    return {each.stream: each.label for each in use.streams if 0 < most <= 2 * each.compute_ns}


def _collect(part: CapturePart, device: DevicePart) -> Collected[_SharedStreamSums]:
    """Group the times of the copies by their stream."""
    work, copies = device.activity, device.copies
    kinds = np.isin(copies.kind, [KINDS.index(name) for name in COPY_KINDS])
    members = copies.members[kinds & (copies.memory != MEMORIES.index("pageable"))]
    rows = part.trace.operations[work.rows[members]].select(
        pl.col("stream").cast(pl.Int64),
        "bytes",
        count=pl.lit(1, pl.Int64),
        results=pl.col("bytes") * (pl.col("kind") == "d2h"),
    )
    stream, within = rows["stream"].to_numpy(), dict[str, Intervals]()
    for row in np.unique(stream).tolist():
        own = members[stream == row]
        within[str(row)] = intervals.union(work.start[own], work.end[own], ordered=True)
    sums = _SharedStreamSums(KeyedSums.from_rows(rows, "stream"), _exposed_by_streams(within, work.compute))
    return Collected(sums, {name: TimeGroup(times) for name, times in within.items()})


def _exposed_by_streams(within: Mapping[str, Intervals], compute: Intervals) -> dict[str, int]:
    """Return the ns of copies in which nothing computes, by the streams that copy then; `within` has the times of each.

    One stream after the other divides the times of the streams before it.
    """
    pieces = dict[str, Intervals]()
    for name, times in within.items():
        left, divided = intervals.subtract(times, compute), dict[str, Intervals]()
        for names, piece in pieces.items():
            divided[f"{names} {name}"] = intervals.intersect(piece, left)
            divided[names] = intervals.subtract(piece, left)
            left = intervals.subtract(left, piece)
        pieces = {names: piece for names, piece in {**divided, name: left}.items() if len(piece.start)}
    return {names: intervals.length(piece) for names, piece in pieces.items()}


def _decide(facts: CaptureFacts, sums: Mapping[int, _SharedStreamSums]) -> Iterator[FindingDraft]:
    """Yield one finding for each device whose copies queue behind its kernels."""
    for device in facts.devices:
        computing = _computing_streams(device.use)
        copies = sums[device.row].streams.frame.filter(pl.col("stream").is_in(list(computing))).sort("stream")
        if len(copies):
            labels = {str(stream): computing[stream] for stream in copies["stream"].to_list()}
            yield _draft(device, sums[device.row].exposed, copies, labels)


def _draft(
    device: DeviceFacts, exposed: Mapping[str, int], copies: pl.DataFrame, labels: Mapping[str, str]
) -> FindingDraft:
    """Return the finding; `labels` are those of the streams of `copies`, and `exposed` is that of _SharedStreamSums."""
    hideable = device.use.compute_to_hide(COPY_KINDS)
    keys = tuple(copy_key(kind, memory) for kind in COPY_KINDS for memory in MEMORIES if memory != "pageable")
    count, total, results = copies.select(pl.col("count", "bytes", "results").sum()).row(0)
    ns = sum(own for streams, own in exposed.items() if not labels.keys().isdisjoint(streams.split()))
    values = {
        "copies": quantity(count, "copy", "copies"),
        "run": verb(count, "run"),
        "size": size(total),
        "streams": join_words(list(labels.values())[:3]),
        "limit": f"; {duration(hideable)} of compute can hide them" if ns > hideable else "",
    }
    claims = tuple(ExposedClaim(keys, name) for name in labels)
    return FindingDraft(
        "shared_stream", device, claims, values, "results" if 2 * results > total else "", at_most=hideable
    )


shared_stream = OldRule("shared_stream", _decide, _collect, place=150)
