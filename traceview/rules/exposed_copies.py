"""Copies are not hidden behind compute.

Symptom: copies of one kind run while nothing computes.
Cause: depends on the kind of copy.
- h2d and d2h: the copy is issued too late, or it takes longer than the step's compute. If it already runs beside the
  compute, only the gaps between kernels are exposed. The copy widens these gaps (measured on an H200: from 1.5 to
  4 µs), because launches and copies share the link to the host.
- d2d: a copy on the device (`contiguous`, `cat`, gradient buckets) runs on the SMs, as a kernel does.
- p2p: the copy is on a stream with kernels, although the copy engine does not need the SMs.
- Managed memory: page faults.
Remedy: by kind, see the advice of each.

Claims the exposed time of each pair of kind and memory that is left, at most the compute that can hide it, and of
memsets. A copy on the device is not hidden but avoided, so its claim has no such limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import polars as pl

from traceview import intervals
from traceview.model.rows import CopyOverlap
from traceview.model.sums import Counts, KeyedSums
from traceview.model.units import duration, quantity, rate, share, size
from traceview.pricing.accounts import MEMSET, copy_key
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, OldRule
from traceview.pricing.claims import Collected, ExposedClaim
from traceview.rules.pageable_copies import HOST_KINDS

MAX_KERNEL_GAP = 20_000  # ns; a longer exposed piece is a wait, not the gap between two kernels
MIN_MEMSET = 10_000  # ns; a shorter loss to memsets is worth no change
MIN_HIDDEN = 0.7  # the share of its time from which a copy counts as running beside the compute
NO_PIECES = pl.DataFrame(schema={"copies": pl.String, "length": pl.Int64, "count": pl.Int64})
NO_STREAMS = pl.DataFrame(schema={"copies": pl.String, "stream": pl.Int64, "count": pl.Int64})
KIND_NAMES = {"h2d": "host-to-device", "d2h": "device-to-host", "d2d": "device-to-device", "p2p": "GPU-to-GPU"}


class _ExposedCopiesSums(NamedTuple):
    """Copies by kind and memory, as in `copy_key`: short exposed pieces (their lengths), and `count` by stream."""

    short: KeyedSums
    streams: KeyedSums


def _collect(part: CapturePart, device: DevicePart) -> Collected[_ExposedCopiesSums]:
    work, stream = device.activity, part.trace.operations["stream"].to_numpy()
    pieces, streams = [NO_PIECES], [NO_STREAMS]
    for kind, memory, members in device.copies.groups():
        if memory == "pageable" and kind in HOST_KINDS:
            continue
        key = copy_key(kind, memory)
        counts = Counts.from_values(stream[work.rows[members]])
        own = {"copies": [key] * len(counts.values), "stream": counts.values, "count": counts.counts}
        streams.append(pl.DataFrame(own, NO_STREAMS.schema))
        if kind in ("h2d", "d2h"):
            copying = intervals.union(work.start[members], work.end[members], ordered=True)
            exposed = intervals.subtract(copying, work.compute)
            lengths = exposed.end - exposed.start
            short = pl.DataFrame({"length": lengths[lengths < MAX_KERNEL_GAP]})
            pieces.append(short.select(pl.lit(key).alias("copies"), "length", count=pl.lit(1, pl.Int64)))
    by_stream = KeyedSums.from_rows(pl.concat(streams), "copies", "stream")
    return Collected(_ExposedCopiesSums(KeyedSums.from_rows(pl.concat(pieces), "copies", "length"), by_stream))


def _decide(facts: CaptureFacts, sums: Mapping[int, _ExposedCopiesSums]) -> Iterator[FindingDraft]:
    """Yield one finding for each device, kind and memory, and one for each device's memsets."""
    for device in facts.devices:
        for copies in device.use.copies:
            if not (copies.memory == "pageable" and copies.kind in HOST_KINDS):  # these are `pageable_copies`
                yield _draft(device, copies, sums[device.row])
        yield FindingDraft("exposed_memset", device, (ExposedClaim((MEMSET,)),), min_ns=MIN_MEMSET)


def _draft(device: DeviceFacts, copies: CopyOverlap, sums: _ExposedCopiesSums) -> FindingDraft:
    key = copy_key(copies.kind, copies.memory)
    computing = pl.col("stream").is_in([use.stream for use in device.use.streams if use.compute_ns])
    mixed = sums.streams.frame.filter(pl.col("copies") == key, computing)["count"].sum()
    is_mixed = 2 * mixed > copies.count
    in_gaps = _in_kernel_gaps(copies, sums.short.frame.filter(pl.col("copies") == key))
    kind = KIND_NAMES.get(copies.kind, copies.kind)
    hideable = None if copies.kind == "d2d" else device.use.compute_to_hide([copies.kind])
    limited = hideable is not None and hideable < copies.exposed_ns
    values = {
        "copies": quantity(copies.count, f"{kind} copy", f"{kind} copies"),
        "kind": kind,
        "memory": copies.memory,
        "size": size(copies.bytes),
        "exposed_share": share(copies.exposed_ns, copies.busy_ns),
        "limit": f"; {duration(hideable or 0)} of compute can hide them" if limited else "",
        "exposed": duration(copies.exposed_ns),
        "busy": duration(copies.busy_ns),
        "rate": rate(copies.bytes, copies.busy_ns),
    }
    return FindingDraft(
        f"exposed_{copies.kind}",
        device,
        (ExposedClaim((key,)),),
        {**values, **in_gaps},
        "kernel_gaps" if in_gaps else "mixed" if is_mixed else "",
        key=copies.memory,
        at_most=hideable,
    )


def _in_kernel_gaps(copies: CopyOverlap, short: pl.DataFrame) -> dict[str, str]:
    """Return values if copies are exposed mostly in the short gaps between kernels (columns length and count)."""
    if copies.kind not in ("h2d", "d2h") or copies.overlapped_ns < MIN_HIDDEN * copies.busy_ns:
        return {}
    lengths = short.sort("length")
    pieces = Counts(lengths["length"].to_numpy(), lengths["count"].to_numpy())
    ns, count = int((pieces.values * pieces.counts).sum()), int(pieces.counts.sum())
    if 2 * ns < copies.exposed_ns or count == 0:
        return {}
    return {"short": duration(ns), "pieces": f"{count:,}", "typical": duration(int(pieces.median))}


exposed_copies = OldRule("exposed_copies", _decide, _collect, place=170)
