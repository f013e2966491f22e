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

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from traceview.intervals import Rows
from traceview.model.peaks import pinned_rate
from traceview.model.rows import CopyOverlap
from traceview.model.trace import KINDS, MEMORIES
from traceview.pricing.accounts import copy_key
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.figures import join_words
from traceview.pricing.ledger import ExposedClaim, IdleClaim
from traceview.pricing.waits import restart_claim
from traceview.rules.advice.copies import READ_BACK
from traceview.rules.advice.pageable import PAGEABLE_LARGE, PAGEABLE_SMALL, START_UP_COPIES
from traceview.units import duration, quantity, rate, share, size

HOST_KINDS = ("h2d", "d2h", "h2h")
MIN_LARGE = 65_536  # bytes; a smaller copy takes less time than its call, so pinning does not help
MIN_BLAME_RATIO = 10  # a synchronize call is not the cause if the copies block the host this many times longer


def pageable_copies(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device that copies from or to pageable memory."""
    for device in facts.devices:
        copies = pageable(device.use.copies)
        if copies:
            yield _draft(facts, device, copies)


def pageable(copies: Sequence[CopyOverlap]) -> list[CopyOverlap]:
    """Return the copies from or to pageable host memory."""
    return [use for use in copies if use.memory == "pageable" and use.kind in HOST_KINDS]


def _draft(facts: CaptureFacts, device: DeviceFacts, copies: list[CopyOverlap]) -> FindingDraft:
    rows = _pageable_rows(device)
    count, total = sum(use.count for use in copies), sum(use.bytes for use in copies)
    busy, exposed = sum(use.busy_ns for use in copies), sum(use.exposed_ns for use in copies)
    implicit = facts.analysis.host.implicit_sync.frame
    calls = _blocking_calls(facts, device, rows, implicit)
    blocked = device.total("pageable_blocked_ns", int(calls["blocked"].sum()))
    inside = device.total("steady_pageable_copies", _count_steady(facts, device, rows))
    remainder = pinned_remainder(device, copies)
    kinds = join_words([f"{size(use.bytes)} {use.kind}" for use in copies])
    if facts.counted is not None and inside == 0:
        fixes = START_UP_COPIES
    elif total < MIN_LARGE * count:
        fixes = PAGEABLE_SMALL
    else:
        results = sum(use.bytes for use in copies if use.kind == "d2h")
        fixes = READ_BACK if 2 * results > total else PAGEABLE_LARGE
    fix = fixes.choose(facts.program)
    advice = fix.advice.replace("{each}", size(total / count))
    limit = f"; from pinned memory {duration(remainder)} would remain" if remainder else ""
    effect = f"block the host for {duration(blocked)}" if blocked else "run while nothing computes"
    return FindingDraft(
        id="pageable_copies",
        device=device,
        title=f"{quantity(count, 'copy', 'copies')} from or to pageable memory "
        f"({kinds}) {effect}{_start_up_words(facts, inside)}{limit}",
        advice=f"They run at {rate(total, busy)}, and the GPU computes nothing during {share(exposed, busy)} of "
        "their time. "
        f"{_apparent_cause(facts, blocked)}{advice}",
        code=fix.code,
        remedy=fix.remedy,
        claims=(
            ExposedClaim(tuple(copy_key(use.kind, use.memory) for use in copies)),
            IdleClaim(("launch",), rows=device.gaps_before(rows)),
            IdleClaim(("blocking_copy",)),
            restart_claim(device, calls),
        ),
        change="pin" if total >= MIN_LARGE * count else "",
        at_most=max(exposed - remainder, 0) + facts.analysis.host.implicit_sync.cost_ns,
        place_label="a copy from or to pageable memory blocks its host thread",
    )


def pinned_remainder(device: DeviceFacts, copies: list[CopyOverlap]) -> int:
    """Return how long copies from pinned memory would take beyond the compute that can hide them, in ns.

    The two directions have their own engines, so that the slower one counts.
    """
    kinds = {use.kind for use in copies}
    longest = max(sum(use.bytes for use in copies if use.kind == kind) for kind in kinds)
    return max(int(longest / pinned_rate(device.use.name)) - device.compute_to_hide(kinds), 0)


def _pageable_rows(device: DeviceFacts) -> Rows:
    """Return the rows of Trace.operations that are pageable copies from or to the host on this device."""
    copies, codes = device.copies, [KINDS.index(name) for name in HOST_KINDS]
    chosen = (copies.memory == MEMORIES.index("pageable")) & np.isin(copies.kind, codes)
    rows: Rows = device.activity.rows[copies.members[chosen]]
    return rows


def _blocking_calls(facts: CaptureFacts, device: DeviceFacts, rows: Rows, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that issue these copies, rows of SyncUse.frame."""
    issued = facts.analysis.trace.operations[rows]
    if device.totals.in_parts:  # a call can return before its copy starts, in the next slice of the capture
        issued = facts.analysis.trace.operations.filter(
            (pl.col("device") == device.use.device)
            & (pl.col("class") == "copy")
            & (pl.col("memory") == "pageable")
            & pl.col("kind").is_in(HOST_KINDS)
            & (pl.col("start") < device.use.window.end)
            & (pl.col("end") > device.use.window.start)
        )
    launches = issued["launch"].drop_nulls().unique().to_numpy()
    return frame.filter(np.isin(frame["api"].to_numpy(), launches))


def _start_up_words(facts: CaptureFacts, inside: int) -> str:
    """Return how many copies an iteration has; `inside` is the number of copies in the counted iterations."""
    if facts.counted is None:
        return ""
    return facts.per_iteration(inside) if inside else ", all outside the counted iterations (start-up)"


def _count_steady(facts: CaptureFacts, device: DeviceFacts, rows: Rows) -> int:
    start = facts.analysis.trace.operations["start"].to_numpy()[rows]
    return int(((start >= device.steady.start) & (start < device.steady.end)).sum())


def _apparent_cause(facts: CaptureFacts, blocked: int) -> str:
    """Return a sentence on the synchronize call that looks like the cause but is not, or ""."""
    call = max(facts.analysis.host.sync.calls, key=lambda call: call.blocked_ns, default=None)
    if call is None or call.blocked_ns * MIN_BLAME_RATIO > blocked:
        return ""
    total = f"{duration(call.blocked_ns)} in {quantity(call.count, 'call')}"
    return f"{call.api} looks like the cause, but blocks the host for only {total}. "
