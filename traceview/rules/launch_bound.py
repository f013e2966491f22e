"""Launch-bound: the GPU finishes kernels faster than the host launches them.

Symptom: thousands of short gaps. A kernel starts as soon as its launch call returns, because the queue is empty.
Cause: small kernels. Each costs its launch (5 to 10 µs) and the Python and dispatcher work before it.
Remedy: a CUDA graph, torch.compile, or larger kernels (batch size, fused optimizer).

An eager operation takes 5 to 60 µs of Python, autograd and launch in the captures measured, so a gap of up to 100 µs
is one or two operations. In a longer gap the host does something else. Short gaps must take 5% of a stretch: next to
kernels of milliseconds they are 1 or 2% of the time, and cheaper launches do not help.

Claims the idle causes `launch`, `api` and `host` of the short steady gaps in dense stretches. From each gap
without a synchronization it also claims up to 5 µs of `queued`: a launch that the GPU waits for reaches it some
µs after the call returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from traceview import intervals
from traceview.intervals import EMPTY, Rows, Times
from traceview.model.findings import Place
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.figures import largest_positions
from traceview.pricing.ledger import IdleClaim
from traceview.rules.advice.launches import LAUNCH_BOUND
from traceview.units import duration, share

MAX_SHORT_GAP = 100_000  # ns
MIN_GAPS = 20
STRETCH = 1_000_000  # ns
MIN_DENSITY = 0.05  # the share of a stretch that is short waits
MAX_PLACES = 5
MAX_LATENCY = 5_000  # ns
CAUSES = ("launch", "api", "host")


class _DenseStretches(NamedTuple):
    """Dense stretches of the steady time: their numbers, waiting ns and gap counts.

    `rows` are the gaps of all these stretches, and `waits` the waiting ns of each gap.
    """

    number: Times
    ns: Times
    gaps: Times
    rows: Rows
    waits: Times


def launch_bound(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device that waits for launches in short gaps."""
    for device in facts.devices:
        dense = _dense_stretches(device)
        if len(dense.rows) or device.totals.in_parts:
            median = device.totals.median("operation_ns", device.activity.end - device.activity.start)
        if len(dense.rows):
            yield _draft(facts, device, dense, median)


def _dense_stretches(device: DeviceFacts) -> _DenseStretches:
    """Return the stretches in which short waits take at least MIN_DENSITY of the time."""
    rows, waits = _short_waits(device)
    first, number = _stretch_starts(device, rows)
    ns = np.add.reduceat(waits, first) if len(first) else waits
    count = np.diff(first, append=len(rows))
    edges = {str(number[at]): int(ns[at]) for at in (0, -1)} if len(number) else {}
    whole = device.total("waits_in_stretches", edges)  # a slice of a capture can begin or end inside a stretch
    totals = ns.copy()
    totals[[0, -1][: len(edges)]] = [whole[name] for name in edges]
    dense = totals >= MIN_DENSITY * STRETCH
    kept = np.repeat(dense, count)
    return _DenseStretches(number[dense], ns[dense], count[dense], rows[kept], waits[kept])


def _short_waits(device: DeviceFacts) -> tuple[Rows, Times]:
    """Return the short steady gaps in which the GPU waits for launches, and the waiting ns of each."""
    steady, count = device.steady_gaps, 0
    rows, ns = (np.empty(steady.stop - steady.start, kind) for kind in (np.int32, np.int64))
    for block in intervals.blocks(len(rows)):
        gaps = slice(steady.start + block.start, steady.start + block.stop)
        waits = device.gap_waits(CAUSES, gaps)
        if waits is not None:
            short = device.gap_end[gaps] - device.gap_start[gaps] <= MAX_SHORT_GAP
            chosen = np.flatnonzero(short & (waits > 0))
            put = slice(count, count + len(chosen))
            rows[put], ns[put] = chosen + gaps.start, waits[chosen]
            count = put.stop
    return rows[:count], ns[:count]


def _stretch_starts(device: DeviceFacts, rows: Rows) -> tuple[Times, Times]:
    """Return the position in `rows` of the first gap of each stretch, and the number of the stretch."""
    # Only stretches with gaps: with a damaged timestamp the window can last a century.
    firsts, numbers, last = [EMPTY.start], [EMPTY.start], -1
    for block in intervals.blocks(len(rows)):
        number = (device.gap_start[rows[block]] - device.steady.start) // STRETCH
        begins = np.flatnonzero(np.diff(number, prepend=last))  # the numbers ascend, as the gaps do
        firsts.append(begins + block.start)
        numbers.append(number[begins])
        last = number[-1]
    return np.concatenate(firsts), np.concatenate(numbers)


def _draft(facts: CaptureFacts, device: DeviceFacts, dense: _DenseStretches, median: float) -> FindingDraft:
    """Return the finding; `median` is that of the lengths of operations, in ns."""
    fix, median_text = LAUNCH_BOUND.choose(facts.program), duration(median)
    late = dense.rows[device.use.gaps.frame["sync"].to_numpy()[dense.rows] == 0]
    waits = device.shown("dense waits", {"ns": int(dense.ns.sum()), "count": len(dense.rows)})
    mean_wait = duration(waits["ns"] / waits["count"])
    return FindingDraft(
        id="launch_bound",
        device=device,
        title="Launch-bound: the GPU is idle for {cost} in {gaps} short gaps between small kernels",
        advice=f"Half of the GPU's operations take less than {median_text}. The GPU then waits {mean_wait} on average "
        f"for the host to launch the next operation{_main_thread(facts, device, dense, waits['ns'])}. {fix.advice}",
        code=fix.code,
        remedy=fix.remedy,
        claims=(
            IdleClaim(CAUSES, rows=dense.rows),
            IdleClaim(("queued",), rows=late, at_most=np.full(len(late), MAX_LATENCY)),
        ),
        change="graph",
        min_gaps=MIN_GAPS,
        evidence=_longest_stretches(device, dense),
    )


def _main_thread(facts: CaptureFacts, device: DeviceFacts, dense: _DenseStretches, whole: int) -> str:
    """Return " (59% of the wait is for thread pt_autograd_0)", the thread that the GPU waits for most, or ""."""
    thread = device.gap_thread[dense.rows] + 1  # 0: unknown
    sums = np.bincount(thread, weights=dense.waits)[1:]
    own = {str(number): int(sums[number]) for number in np.flatnonzero(sums).tolist()}
    every = device.shown("dense waits by thread", own)
    most = max(every, key=lambda number: (every[number], -int(number)), default=None)
    if most is None:
        return ""
    return f" ({share(every[most], whole)} of the wait is for thread {facts.thread_name(int(most))})"


def _longest_stretches(device: DeviceFacts, dense: _DenseStretches) -> tuple[Place, ...]:
    """Return the stretches with the most short waits."""
    # Those at the edges may go on in another slice of the capture.
    chosen = dict.fromkeys([*largest_positions(dense.ns, MAX_PLACES), 0, len(dense.ns) - 1])
    ns = device.shown("longest stretches", {str(dense.number[at]): int(dense.ns[at]) for at in chosen})
    gaps = device.shown("gaps of stretches", {str(dense.number[at]): int(dense.gaps[at]) for at in chosen})
    places = []
    for number in sorted(ns, key=lambda number: (-ns[number], int(number)))[:MAX_PLACES]:
        start = device.steady.start + int(number) * STRETCH
        text = f"{gaps[number]} short gaps: the GPU waits {duration(ns[number])} of {duration(STRETCH)}"
        places.append(Place(text, start, min(start + STRETCH, device.use.window.end), device.use.id))
    return tuple(places)
