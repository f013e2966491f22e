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

import numpy as np

from traceview import intervals
from traceview.intervals import Times
from traceview.measure.activity import Activity
from traceview.model.rows import CopyOverlap
from traceview.model.units import duration, quantity, rate, share, size
from traceview.pricing.accounts import MEMSET, copy_key
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import TimeClaim
from traceview.rules.pageable_copies import HOST_KINDS

MAX_KERNEL_GAP = 20_000  # ns; a longer exposed piece is a wait, not the gap between two kernels
MIN_MEMSET = 10_000  # ns; a shorter loss to memsets is worth no change
MIN_HIDDEN = 0.7  # the share of its time from which a copy counts as running beside the compute
KIND_NAMES = {"h2d": "host-to-device", "d2h": "device-to-host", "d2d": "device-to-device", "p2p": "GPU-to-GPU"}


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield a finding for each kind and memory of copies of a GPU, and one for its memsets."""
    for copies in device.use.copies:
        if not (copies.memory == "pageable" and copies.kind in HOST_KINDS):  # these are `pageable_copies`
            yield _draft(capture, device, copies)
    yield FindingDraft("exposed_memset", device, (TimeClaim((MEMSET,)),), min_ns=MIN_MEMSET)


def _draft(capture: MeasuredCapture, device: GpuWork, copies: CopyOverlap) -> FindingDraft:
    members = device.copies.select(copies.kind, copies.memory)
    stream = capture.trace.operations["stream"].to_numpy()[device.activity.rows[members]]
    computing = np.isin(stream, [use.stream for use in device.use.streams if use.compute_ns])
    is_mixed = 2 * np.count_nonzero(computing) > copies.count
    in_gaps = _in_kernel_gaps(device.activity, copies, members)
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
        (TimeClaim((copy_key(copies.kind, copies.memory),)),),
        {**values, **in_gaps},
        "kernel_gaps" if in_gaps else "mixed" if is_mixed else "",
        key=copies.memory,
        at_most=hideable,
    )


def _in_kernel_gaps(work: Activity, copies: CopyOverlap, members: Times) -> dict[str, str]:
    """Return values if copies, members of `work`, are exposed mostly in the short gaps between kernels."""
    if copies.kind not in ("h2d", "d2h") or copies.overlapped_ns < MIN_HIDDEN * copies.busy_ns:
        return {}
    copying = intervals.union(work.start[members], work.end[members], ordered=True)
    exposed = intervals.subtract(copying, work.compute)
    lengths = exposed.end - exposed.start
    short = lengths[lengths < MAX_KERNEL_GAP]
    if len(short) == 0 or 2 * short.sum() < copies.exposed_ns:
        return {}
    values = (duration(int(short.sum())), f"{len(short):,}", duration(int(np.median(short))))
    return dict(zip(("short", "pieces", "typical"), values, strict=True))


exposed_copies = Rule("exposed_copies", find)
