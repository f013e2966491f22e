"""Copies from or to pageable memory block the host thread that issues them.

Symptom: cudaMemcpyAsync takes as long as the copy and nothing computes meanwhile; the synchronize call after it looks
like the cause.
Cause: the driver stages pageable memory through its own pinned buffer, piece by piece, while the caller waits. Such a
copy is never asynchronous and never overlaps work that the same thread launches.
Remedy: pinned batches, a copy stream and a prefetch, all three. Avoid small copies instead of pinning them.

Claims the exposed time of pageable h2d, d2h and h2h copies; at most the cost of implicitly synchronizing calls, the
idle cause `blocking_copy`, the cause `launch` of gaps that such a copy ends (there the launch call does the staging)
and the restart gaps of their calls. Copies from pinned memory still take time. Compute hides a part of it; the
rest of the exposed time belongs to `copy_bound`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.measure.activity import COPY
from traceview.model.analysis import DeviceUse
from traceview.model.peaks import pinned_rate
from traceview.model.rows import CopyOverlap
from traceview.model.trace import KINDS, MEMORIES, Trace
from traceview.model.units import duration, quantity, rate, share, size, verb
from traceview.pricing.accounts import copy_key
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, Mask, OldRule
from traceview.pricing.claims import Collected, ExposedClaim, GapGroup, IdleClaim
from traceview.pricing.texts import join_words
from traceview.rules.synchronize import RESTART_CLAIM, RESTARTS, restart_gaps

HOST_KINDS = ("h2d", "d2h", "h2h")
MIN_LARGE = 65_536  # bytes; a smaller copy takes less time than its call, so pinning does not help
MIN_BLAME_RATIO = 10  # a synchronize call is not the cause if the copies block the host this many times longer


class _PageableCopiesSums(NamedTuple):
    """How long the calls of pageable copies block the host, in ns, and the number of these in the steady part."""

    blocked: int
    steady: int


def _collect(part: CapturePart, device: DevicePart) -> Collected[_PageableCopiesSums]:
    """Group the gaps that end with pageable copies, and those after their calls."""
    trace, copies = part.trace, device.copies
    issued = _are_pageable(trace, device)
    if not issued.any():
        return Collected(_PageableCopiesSums(0, 0))
    calls = _blocking_calls(part, device, issued)
    chosen = copies.members[issued[device.activity.rows[copies.members]]]
    start = trace.operations["start"].to_numpy()[device.activity.rows[chosen]]
    steady = int(((start >= device.steady.start) & (start < device.steady.end)).sum())
    return Collected(
        _PageableCopiesSums(int(calls["blocked"].sum()), steady),
        {"before": GapGroup(device.gaps_before(issued)), RESTARTS: restart_gaps(device, calls)},
    )


def _are_pageable(trace: Trace, device: DevicePart) -> Mask:
    """Return which rows of Trace.operations are copies of the device from or to pageable host memory."""
    kind, memory, own, work = (
        trace.operations[name].to_physical().to_numpy() for name in ("kind", "memory", "device", "class")
    )
    kinds = [KINDS.index(name) for name in HOST_KINDS]
    is_copy = (own == device.row) & (work == COPY) & (memory == MEMORIES.index("pageable"))
    marked: Mask = is_copy & np.isin(kind, kinds)
    return marked


def _blocking_calls(part: CapturePart, device: DevicePart, issued: Mask) -> pl.DataFrame:
    """Return the calls that issue copies in the time that findings cover, rows of SyncUse.frame.

    A call can return before its copy starts.
    """
    window = device.window
    inside = (pl.col("start") < window.end) & (pl.col("end") > window.start)
    launches = part.trace.operations.filter(pl.Series(issued) & inside)["launch"].drop_nulls().unique().to_numpy()
    frame = part.host.implicit_sync.frame
    return frame.filter(np.isin(frame["api"].to_numpy(), launches))


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


def _decide(facts: CaptureFacts, sums: Mapping[int, _PageableCopiesSums]) -> Iterator[FindingDraft]:
    """Yield one finding for each device that copies from or to pageable memory."""
    for device in facts.devices:
        copies = pageable(device.use.copies)
        if copies:
            yield _draft(facts, device, copies, sums[device.row])


def _draft(
    facts: CaptureFacts, device: DeviceFacts, copies: list[CopyOverlap], sums: _PageableCopiesSums
) -> FindingDraft:
    count, total = sum(use.count for use in copies), sum(use.bytes for use in copies)
    busy, exposed = sum(use.busy_ns for use in copies), sum(use.exposed_ns for use in copies)
    remainder = pinned_remainder(device.use, copies)
    values = {
        "copies": quantity(count, "copy", "copies"),
        "kinds": join_words([f"{size(use.bytes)} {use.kind}" for use in copies]),
        "does": f"{verb(count, 'block')} the host for {duration(sums.blocked)}"
        if sums.blocked
        else f"{verb(count, 'run')} while nothing computes",
        "when": _start_up_words(facts, sums.steady),
        "limit": f"; from pinned memory {duration(remainder)} would remain" if remainder else "",
        "rate": rate(total, busy),
        "idle": share(exposed, busy),
        "each": size(total / count),
        "blame": _apparent_cause(facts, sums.blocked),
    }
    claims = (
        ExposedClaim(tuple(copy_key(use.kind, use.memory) for use in copies)),
        IdleClaim(("launch",), "before"),
        IdleClaim(("blocking_copy",)),
        RESTART_CLAIM,
    )
    return FindingDraft(
        "pageable_copies",
        device,
        claims,
        values,
        _case(facts, copies, sums.steady),
        at_most=max(exposed - remainder, 0) + facts.analysis.host.implicit_sync.cost_ns,
    )


def _case(facts: CaptureFacts, copies: list[CopyOverlap], steady: int) -> str:
    """Return the case of the texts; `steady` is how many of the copies are in the steady part."""
    count, total = sum(use.count for use in copies), sum(use.bytes for use in copies)
    are_small = total < MIN_LARGE * count
    if facts.counted is not None and steady == 0:
        return "small_at_start_up" if are_small else "start_up"
    results = sum(use.bytes for use in copies if use.kind == "d2h")
    return "small" if are_small else "results" if 2 * results > total else ""


def _start_up_words(facts: CaptureFacts, steady: int) -> str:
    """Return how many copies an iteration has; `steady` is the number of copies in the counted iterations."""
    if facts.counted is None:
        return ""
    return facts.per_iteration(steady) if steady else ", all outside the counted iterations (start-up)"


def _apparent_cause(facts: CaptureFacts, blocked: int) -> str:
    """Return a sentence on the synchronize call that looks like the cause but is not, or ""."""
    call = max(facts.analysis.host.sync.calls, key=lambda call: call.blocked_ns, default=None)
    if call is None or call.blocked_ns * MIN_BLAME_RATIO > blocked:
        return ""
    total = f"{duration(call.blocked_ns)} in {quantity(call.count, 'call')}"
    return f"{call.api} looks like the cause, but blocks the host for only {total}. "


pageable_copies = OldRule("pageable_copies", _decide, _collect, place=90)
