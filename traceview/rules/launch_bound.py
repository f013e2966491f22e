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

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Rows, Times
from traceview.model.findings import Place
from traceview.model.units import duration, share
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import GapClaim

MAX_SHORT_GAP = 100_000  # ns
MIN_GAPS = 20
STRETCH = 1_000_000  # ns
MIN_DENSITY = 0.05  # minimum share of a stretch that short waits take
MAX_PLACES = 5
MAX_LATENCY = 5_000  # ns
CAUSES = ("launch", "api", "host")


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield a finding if the device waits for launches in short gaps."""
    rows, ns = short_waits(device)
    waits = pl.DataFrame(
        {
            "gap": rows,
            # Only stretches with gaps: with a damaged timestamp the window can last a century.
            "stretch": (device.gap_start[rows] - device.steady.start) // STRETCH,
            "thread": device.gap_thread[rows],
            "ns": ns,
        }
    )
    dense = waits.filter(pl.col("ns").sum().over("stretch") >= MIN_DENSITY * STRETCH)
    if dense.is_empty():
        return
    total, gaps = int(dense["ns"].sum()), dense["gap"].to_numpy()
    late = gaps[device.gaps.frame["sync"].to_numpy()[gaps] == 0]
    values = {
        "median": duration(float(np.median(device.activity.end - device.activity.start))),
        "wait": duration(total / len(dense)),
        "thread": _main_thread(capture, dense, total),
    }
    yield FindingDraft(
        "launch_bound",
        device,
        (GapClaim(CAUSES, gaps), GapClaim(("queued",), late, np.full(len(late), MAX_LATENCY))),
        values,
        min_gaps=MIN_GAPS,
        evidence=_longest_stretches(device, dense),
    )


def short_waits(device: GpuWork) -> tuple[Rows, Times]:
    """Return the short steady gaps in which the GPU waits for launches, and the waiting ns of each."""
    steady = device.steady_gaps
    waits = device.gap_waits(CAUSES, steady)
    if waits is None:
        return np.empty(0, np.int32), np.empty(0, np.int64)
    short = device.gap_end[steady] - device.gap_start[steady] <= MAX_SHORT_GAP
    chosen = intervals.rows_where(short & (waits > 0))
    return chosen + np.int32(steady.start), waits[chosen]


def _main_thread(capture: MeasuredCapture, dense: pl.DataFrame, total: int) -> str:
    """Return " (59% of the wait is for thread pt_autograd_0)", the thread that the GPU waits for most, or ""."""
    threads = dense.filter(pl.col("thread") >= 0).group_by("thread").agg(pl.col("ns").sum())
    if threads.is_empty():
        return ""
    thread, ns = threads.sort("ns", "thread", descending=[True, False]).row(0)
    return f" ({share(ns, total)} of the wait is for thread {capture.thread_name(thread)})"


def _longest_stretches(device: GpuWork, dense: pl.DataFrame) -> tuple[Place, ...]:
    """Return the stretches with the most short waits."""
    sums = dense.group_by("stretch").agg(pl.col("ns").sum(), pl.len())
    places = []
    for number, ns, gaps in sums.sort("ns", "stretch", descending=[True, False]).head(MAX_PLACES).iter_rows():
        start = device.steady.start + number * STRETCH
        text = f"{gaps} short gaps: the GPU waits {duration(ns)} of {duration(STRETCH)}"
        places.append(Place(text, start, min(start + STRETCH, device.use.window.end), device.id))
    return tuple(places)


launch_bound = Rule("launch_bound", find)
