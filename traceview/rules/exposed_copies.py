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

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from traceview import intervals
from traceview.model.rows import CopyOverlap
from traceview.pricing.accounts import MEMSET, copy_key
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.fixes import Fix, Fixes
from traceview.pricing.ledger import ExposedClaim
from traceview.rules.advice.copies import (
    BETWEEN_GPUS,
    BETWEEN_KERNELS,
    MANAGED,
    MIXED,
    ON_DEVICE,
    PREFETCH,
    READ_BACK,
    ZEROED_MEMORY,
)
from traceview.rules.pageable_copies import HOST_KINDS
from traceview.units import duration, quantity, rate, share, size

MAX_KERNEL_GAP = 20_000  # ns; a longer exposed piece is a wait, not the gap between two kernels
MIN_MEMSET = 10_000  # ns; a shorter loss to memsets is worth no change
MIN_HIDDEN = 0.7  # the share of its time from which a copy counts as running beside the compute
KIND_NAMES = {"h2d": "host-to-device", "d2h": "device-to-host", "d2d": "device-to-device", "p2p": "GPU-to-GPU"}


def exposed_copies(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device, kind and memory, and one for each device's memsets."""
    for device in facts.devices:
        for copies in device.use.copies:
            if copies.memory == "pageable" and copies.kind in HOST_KINDS:
                continue  # `pageable_copies`
            fix = _fix_for_kernel_gaps(facts, device, copies) or _fixes(
                copies, _mostly_on_compute_streams(facts, device, copies)
            ).choose(facts.program)
            kind = KIND_NAMES.get(copies.kind, copies.kind)
            hideable = None if copies.kind == "d2d" else device.compute_to_hide([copies.kind])
            limited = hideable is not None and hideable < copies.exposed_ns
            limit = f"; {duration(hideable or 0)} of compute can hide them" if limited else ""
            yield FindingDraft(
                id=f"exposed_{copies.kind}",
                device=device,
                title=f"{quantity(copies.count, kind + ' copy', kind + ' copies')} ({copies.memory} memory, "
                f"{size(copies.bytes)}): {share(copies.exposed_ns, copies.busy_ns)} of their time is not hidden "
                f"behind compute{limit}",
                advice=f"{duration(copies.exposed_ns)} of {duration(copies.busy_ns)} is exposed, at "
                f"{rate(copies.bytes, copies.busy_ns)}. {fix.advice}",
                code=fix.code,
                key=copies.memory,
                claims=(ExposedClaim((copy_key(copies.kind, copies.memory),)),),
                at_most=hideable,
                place_label=f"an exposed {kind} copy",
            )
        yield FindingDraft(
            id="exposed_memset",
            device=device,
            title="Memsets: {cost} not hidden behind compute",
            advice=ZEROED_MEMORY.choose(facts.program).advice,
            code=ZEROED_MEMORY.choose(facts.program).code,
            claims=(ExposedClaim((MEMSET,)),),
            min_ns=MIN_MEMSET,
            place_label="an exposed memset",
        )


def _fix_for_kernel_gaps(facts: CaptureFacts, device: DeviceFacts, copies: CopyOverlap) -> Fix | None:
    """Return a fix if copies are exposed mostly in the short gaps between kernels, else None."""
    if copies.kind not in ("h2d", "d2h") or copies.overlapped_ns < MIN_HIDDEN * copies.busy_ns:
        return None
    work, chosen = device.activity, device.copies.select(copies.kind, copies.memory)
    copying = intervals.union(work.start[chosen], work.end[chosen], ordered=True)
    exposed = intervals.subtract(copying, work.compute)
    lengths = exposed.end - exposed.start
    short = lengths[lengths < MAX_KERNEL_GAP]
    name = f"short pieces {copies.kind} {copies.memory}"
    figures = device.total(name, {"ns": int(short.sum()), "count": len(short)})
    if 2 * figures["ns"] < copies.exposed_ns or figures["count"] == 0:
        return None
    typical = duration(int(device.totals.median(name, short)))
    fix = BETWEEN_KERNELS.choose(facts.program)
    gaps = fix.advice.replace("{pieces}", f"{figures['count']:,}").replace("{typical}", typical)
    return replace(fix, advice=f"{duration(figures['ns'])} {gaps}")


def _mostly_on_compute_streams(facts: CaptureFacts, device: DeviceFacts, copies: CopyOverlap) -> bool:
    """Return whether most of these copies run on streams that also compute."""
    stream = facts.analysis.trace.operations["stream"].to_numpy()
    streams = stream[device.activity.rows[device.copies.select(copies.kind, copies.memory)]]
    computing = [use.stream for use in device.use.streams if use.compute_ns]
    figures = {"count": len(streams), "computing": int(np.count_nonzero(np.isin(streams, computing)))}
    figures = device.shown(f"streams of copies {copies.kind} {copies.memory}", figures)
    return 2 * figures["computing"] > figures["count"]


def _fixes(copies: CopyOverlap, mixed: bool) -> Fixes:
    if copies.kind.startswith("um_"):
        return MANAGED
    by_kind = {"p2p": BETWEEN_GPUS, "d2d": ON_DEVICE, "d2h": READ_BACK}
    return by_kind.get(copies.kind, MIXED if mixed else PREFETCH)
