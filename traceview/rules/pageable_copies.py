"""Copies from or to pageable memory block the host thread that issues them.

Symptom: cudaMemcpyAsync takes as long as the copy and nothing computes meanwhile; the synchronize call after it looks
like the cause.
Cause: the driver stages pageable memory through its own pinned buffer, piece by piece, while the caller waits. Such a
copy is never asynchronous and never overlaps work that the same thread launches.
Remedy: pinned batches, a copy stream and a prefetch, all three. Avoid small copies instead of pinning them.

Claims the exposed time of pageable h2d, d2h and h2h copies; at most the cost of implicitly synchronizing calls, the
idle cause `blocking_copy`, the cause `launch` of gaps that such a copy ends (there the launch call does the staging)
and the restart gaps of their calls. Copies from pinned memory still take time. Compute hides some of it; the
rest of the exposed time belongs to `copy_bound`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from traceview.intervals import Rows
from traceview.model.analysis import DeviceUse
from traceview.model.peaks import pinned_rate
from traceview.model.rows import CopyOverlap
from traceview.model.units import duration, quantity, rate, share, size, verb
from traceview.pricing.accounts import copy_key
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import GapClaim, TimeClaim
from traceview.pricing.texts import join_words
from traceview.rules.synchronize import restart_claim

HOST_KINDS = ("h2d", "d2h", "h2h")
MIN_LARGE = 65_536  # bytes; a smaller copy takes less time than its call, so pinning does not help
MIN_BLAME_RATIO = 10  # a synchronize call is not the cause if the copies block the host this many times longer


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield a finding for a GPU that copies from or to pageable memory."""
    copies = pageable(device.use.copies)
    if not copies:
        return
    count, total = sum(use.count for use in copies), sum(use.bytes for use in copies)
    busy, exposed = sum(use.busy_ns for use in copies), sum(use.exposed_ns for use in copies)
    remainder = pinned_remainder(device.use, copies)
    issued = _pageable_rows(device)
    calls, steady = _blocking_calls(capture, issued), _count_steady(capture, device, issued)
    blocked = int(calls["blocked"].sum())
    values = {
        "copies": quantity(count, "copy", "copies"),
        "kinds": join_words([f"{size(use.bytes)} {use.kind}" for use in copies]),
        "does": f"{verb(count, 'block')} the host for {duration(blocked)}"
        if blocked
        else f"{verb(count, 'run')} while nothing computes",
        "when": _start_up_words(capture, steady),
        "limit": f"; from pinned memory {duration(remainder)} would remain" if remainder else "",
        "rate": rate(total, busy),
        "idle": share(exposed, busy),
        "each": size(total / count),
        "blame": _apparent_cause(capture, blocked),
    }
    is_issued = np.zeros(len(capture.trace.operations), np.bool_)
    is_issued[issued] = True
    claims = (
        TimeClaim(tuple(copy_key(use.kind, use.memory) for use in copies)),
        GapClaim(("launch",), device.gaps_before(is_issued)),
        GapClaim(("blocking_copy",)),
        restart_claim(device, calls),
    )
    at_most = max(exposed - remainder, 0) + capture.host.implicit_sync.cost_ns
    yield FindingDraft("pageable_copies", device, claims, values, _case(capture, copies, steady), at_most=at_most)


def pageable(copies: Sequence[CopyOverlap]) -> list[CopyOverlap]:
    """Return the copies from or to pageable host memory."""
    return [use for use in copies if use.memory == "pageable" and use.kind in HOST_KINDS]


def pinned_remainder(use: DeviceUse, copies: list[CopyOverlap]) -> int:
    """Return how long copies from pinned memory would take beyond the compute that can hide them, in ns.

    The two directions have their own engines, so that the slower one counts.
    """
    kinds = {each.kind for each in copies}
    longest = max(sum(each.bytes for each in copies if each.kind == kind) for kind in kinds)
    return max(int(longest / pinned_rate(use.name)) - use.compute_to_hide(kinds), 0)


def _pageable_rows(device: GpuWork) -> Rows:
    """Return the copies of the device from or to pageable host memory, rows of Trace.operations."""
    members = np.concatenate([device.copies.select(kind, "pageable") for kind in HOST_KINDS])
    rows: Rows = device.activity.rows[members]
    return rows


def _blocking_calls(capture: MeasuredCapture, issued: Rows) -> pl.DataFrame:
    """Return the blocking calls that issue copies, rows of SyncUse.frame. A call can return before its copy starts."""
    launches = capture.trace.operations["launch"].gather(issued).drop_nulls().to_numpy()
    frame = capture.host.implicit_sync.frame
    return frame.filter(np.isin(frame["api"].to_numpy(), launches))


def _count_steady(capture: MeasuredCapture, device: GpuWork, issued: Rows) -> int:
    """Return the number of copies that start in the steady part."""
    start = capture.trace.operations["start"].to_numpy()[issued]
    return int(np.count_nonzero((start >= device.steady.start) & (start < device.steady.end)))


def _case(capture: MeasuredCapture, copies: list[CopyOverlap], steady: int) -> str:
    """Return the case of the texts; `steady` is how many of the copies are in the steady part."""
    count, total = sum(use.count for use in copies), sum(use.bytes for use in copies)
    are_small = total < MIN_LARGE * count
    if capture.counted is not None and steady == 0:
        return "small_at_start_up" if are_small else "start_up"
    results = sum(use.bytes for use in copies if use.kind == "d2h")
    return "small" if are_small else "results" if 2 * results > total else ""


def _start_up_words(capture: MeasuredCapture, steady: int) -> str:
    """Return how many copies an iteration has; `steady` is the number of copies in the counted iterations."""
    if capture.counted is None:
        return ""
    return capture.per_iteration(steady) if steady else ", all outside the counted iterations (start-up)"


def _apparent_cause(capture: MeasuredCapture, blocked: int) -> str:
    """Return a sentence on the synchronize call that looks like the cause but is not, or ""."""
    call = max(capture.host.sync.calls, key=lambda call: call.blocked_ns, default=None)
    if call is None or call.blocked_ns * MIN_BLAME_RATIO > blocked:
        return ""
    total = f"{duration(call.blocked_ns)} in {quantity(call.count, 'call')}"
    return f"{call.api} looks like the cause, but blocks the host for only {total}. "


pageable_copies = Rule("pageable_copies", find)
