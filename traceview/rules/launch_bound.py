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

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Rows, Times
from traceview.model.findings import Place
from traceview.model.sums import Counts, KeyedSums
from traceview.model.units import duration, share
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, OldRule
from traceview.pricing.claims import Collected, GapGroup, IdleClaim

MAX_SHORT_GAP = 100_000  # ns
MIN_GAPS = 20
STRETCH = 1_000_000  # ns
MIN_DENSITY = 0.05  # minimum share of a stretch that short waits take
MAX_PLACES = 5
MAX_LATENCY = 5_000  # ns
CAUSES = ("launch", "api", "host")


class _LaunchBoundSums(NamedTuple):
    """Short waits by stretch and thread (columns `ns` and `gaps`), and the lengths of operations in ns."""

    waits: KeyedSums
    lengths: Counts


def _collect(_part: CapturePart, device: DevicePart) -> Collected[_LaunchBoundSums]:
    """Label the short gaps with their stretch."""
    rows, waits = short_waits(device)
    # Only stretches with gaps: with a damaged timestamp the window can last a century.
    stretch = (device.gap_start[rows] - device.steady.start) // STRETCH
    late = device.gaps.frame["sync"].to_numpy()[rows] == 0
    return Collected(
        _LaunchBoundSums(
            KeyedSums.from_rows(_runs(stretch, device.gap_thread[rows], waits), "stretch", "thread"),
            Counts.from_values(device.activity.end - device.activity.start),
        ),
        {"short": GapGroup(rows, stretch), "late": GapGroup(rows[late], stretch[late])},
    )


def _runs(stretch: Times, thread: NDArray[np.int16], ns: Times) -> pl.DataFrame:
    """Return the sums of short waits of one stretch and thread that follow each other."""
    differs = (stretch[1:] != stretch[:-1]) | (thread[1:] != thread[:-1])
    first = np.flatnonzero(np.append(True, differs)[: len(stretch)])
    gaps = np.diff(first, append=len(stretch))
    total = np.add.reduceat(ns, first) if len(first) else ns
    return pl.DataFrame({"stretch": stretch[first], "thread": thread[first], "ns": total, "gaps": gaps})


def short_waits(device: DevicePart) -> tuple[Rows, Times]:
    """Return the short steady gaps in which the GPU waits for launches, and the waiting ns of each."""
    steady = device.steady_gaps
    waits = device.gap_waits(CAUSES, steady)
    if waits is None:
        return np.empty(0, np.int32), np.empty(0, np.int64)
    short = device.gap_end[steady] - device.gap_start[steady] <= MAX_SHORT_GAP
    chosen = intervals.rows_where(short & (waits > 0))
    return chosen + np.int32(steady.start), waits[chosen]


def _decide(facts: CaptureFacts, sums: Mapping[int, _LaunchBoundSums]) -> Iterator[FindingDraft]:
    """Yield one finding for each device that waits for launches in short gaps."""
    for device in facts.devices:
        waits = sums[device.row].waits.frame
        whole = pl.col("ns").sum().over("stretch")
        dense = waits.filter(whole >= MIN_DENSITY * STRETCH)
        if len(dense):
            yield _draft(facts, device, dense, sums[device.row].lengths.median)


def _draft(facts: CaptureFacts, device: DeviceFacts, dense: pl.DataFrame, median: float) -> FindingDraft:
    """Return the finding on the waits in dense stretches; `median` is that of the lengths of operations, in ns."""
    stretches = dense["stretch"].unique().sort().to_numpy()
    total = int(dense["ns"].sum())
    values = {
        "median": duration(median),
        "wait": duration(total / int(dense["gaps"].sum())),
        "thread": _main_thread(facts, dense, total),
    }
    late = IdleClaim(("queued",), "late", stretches, at_most=MAX_LATENCY)
    return FindingDraft(
        "launch_bound",
        device,
        (IdleClaim(CAUSES, "short", stretches), late),
        values,
        min_gaps=MIN_GAPS,
        evidence=_longest_stretches(device, dense),
    )


def _main_thread(facts: CaptureFacts, dense: pl.DataFrame, total: int) -> str:
    """Return " (59% of the wait is for thread pt_autograd_0)", the thread that the GPU waits for most, or ""."""
    threads = dense.filter(pl.col("thread") >= 0).group_by("thread").agg(pl.col("ns").sum())
    if threads.is_empty():
        return ""
    thread, ns = threads.sort("ns", "thread", descending=[True, False]).row(0)
    return f" ({share(ns, total)} of the wait is for thread {facts.thread_name(thread)})"


def _longest_stretches(device: DeviceFacts, dense: pl.DataFrame) -> tuple[Place, ...]:
    """Return the stretches with the most short waits."""
    sums = dense.group_by("stretch").agg(pl.col("ns", "gaps").sum())
    places = []
    for number, ns, gaps in sums.sort("ns", "stretch", descending=[True, False]).head(MAX_PLACES).iter_rows():
        start = device.steady.start + number * STRETCH
        text = f"{gaps} short gaps: the GPU waits {duration(ns)} of {duration(STRETCH)}"
        places.append(Place(text, start, min(start + STRETCH, device.use.window.end), device.use.id))
    return tuple(places)


launch_bound = OldRule("launch_bound", _decide, _collect, place=130)
