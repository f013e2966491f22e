"""Rules on GPUs that run out of launched work in short gaps."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import EMPTY, Intervals, Rows, Times, largest_positions
from traceview.measure.activity import COMMUNICATION, COMPUTE
from traceview.measure.shared_work import codes_of, launch_rows
from traceview.measure.storms import MIN_STORM, storms, tiny_operations
from traceview.measure.sums import sums_by_owner
from traceview.model.findings import Place
from traceview.model.trace import Trace
from traceview.model.units import duration, quantity, share
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture
from traceview.pricing.ledger import GapClaim
from traceview.pricing.texts import join_words

MAX_SHORT_GAP = 100_000  # ns
MIN_GAPS = 20
SMALL = 20_000  # ns; a launch takes 5 to 10 µs of the host
STRETCH = 1_000_000  # ns
MIN_DENSITY = 0.05  # minimum share of a stretch that short waits take
MAX_PLACES = 5
MAX_LATENCY = 5_000  # ns
LAUNCH_CAUSES = ("launch", "api", "host")


def launch_bound(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Launch-bound: the GPU finishes kernels faster than the host launches them.

    Symptom: thousands of short gaps. A kernel starts as soon as its launch call returns, because the queue is empty.
    Cause: small kernels. Each costs its launch (5 to 10 µs) and the Python and dispatcher work before it.
    Remedy: a CUDA graph, torch.compile, or larger kernels (batch size, fused optimizer).

    An eager operation takes 5 to 60 µs of Python, autograd and launch in the captures measured, so a gap of up to 100
    µs is one or two operations. In a longer gap the host does something else. Short gaps must take 5% of a stretch:
    next to kernels of milliseconds they are 1 or 2% of the time, and cheaper launches do not help.

    Claims the idle causes `launch`, `api` and `host` of the short steady gaps in dense stretches. From each of them it
    also claims up to 5 µs of `queued`: a launch that the GPU waits for reaches it some µs after the call returns.
    """
    rows, ns = short_waits(device)
    # Only stretches with gaps: with a damaged timestamp the window can last a century.
    stretch = (device.gap_start[rows] - device.steady.start) // STRETCH  # ascending
    first = np.flatnonzero(np.diff(stretch, prepend=-1))
    count, total = np.diff(first, append=len(rows)), np.add.reduceat(ns, first) if len(rows) else ns
    is_dense = total >= MIN_DENSITY * STRETCH
    if not is_dense.any():
        return
    dense = np.repeat(is_dense, count)
    gaps, ns = rows[dense], ns[dense]
    median = float(np.median(device.activity.end - device.activity.start))
    values = {
        "median": duration(median),
        "small": "small " * (median < SMALL),
        "wait": duration(int(ns.sum()) / len(gaps)),
        "thread": _main_thread(capture, device.gap_thread[gaps].astype(np.int64), ns),
    }
    yield FindingDraft(
        "launch_bound",
        device,
        (GapClaim(LAUNCH_CAUSES, gaps), GapClaim(("queued",), gaps, np.full(len(gaps), MAX_LATENCY))),
        values,
        between(capture.trace, device, gaps),
        min_gaps=MIN_GAPS,
        evidence=_longest_stretches(device, stretch[first[is_dense]], total[is_dense], count[is_dense]),
    )


def between(trace: Trace, device: GpuWork, gaps: Rows | Times) -> str:
    """Return the case of the texts on gaps: "" if most lie between kernels, `copies` if most precede no kernel."""
    classes = codes_of(trace.operations, "class")
    after, before = (
        (rows >= 0) & np.isin(classes[np.maximum(rows, 0)], (COMPUTE, COMMUNICATION))
        for rows in (device.gap_operation[gaps], device.gap_before[gaps])
    )
    if 2 * np.count_nonzero(after & before) >= len(after):
        return ""
    return "mixed" if 2 * np.count_nonzero(after) >= len(after) else "copies"


def short_waits(device: GpuWork) -> tuple[Rows, Times]:
    """Return the short steady gaps in which the GPU waits for launches, and the waiting ns of each."""
    steady = device.steady_gaps
    waits = device.gap_waits(LAUNCH_CAUSES, steady)
    if waits is None:
        return np.empty(0, np.int32), np.empty(0, np.int64)
    short = device.gap_end[steady] - device.gap_start[steady] <= MAX_SHORT_GAP
    chosen = intervals.rows_where(short & (waits > 0))
    return chosen + np.int32(steady.start), waits[chosen]


def _main_thread(capture: MeasuredCapture, thread: Times, ns: Times) -> str:
    """Return " (59% of the wait is for thread pt_autograd_0)", the thread that the GPU waits for most, or ""."""
    sums = sums_by_owner(thread + 1, ns, len(capture.trace.threads) + 1)[1:]
    if not sums.any():
        return ""
    main = int(sums.argmax())
    return f" ({share(int(sums[main]), int(ns.sum()))} of the wait is for thread {capture.thread_name(main)})"


def _longest_stretches(device: GpuWork, stretch: Times, ns: Times, gaps: Times) -> tuple[Place, ...]:
    """Return the stretches with the most short waits."""
    places = []
    for at in largest_positions(ns, MAX_PLACES):
        start = device.steady.start + int(stretch[at]) * STRETCH
        text = f"{gaps[at]} short gaps: the GPU waits {duration(int(ns[at]))} of {duration(STRETCH)}"
        places.append(Place(text, start, min(start + STRETCH, device.use.window.end), device.id))
    return tuple(places)


TENSOR_LIBRARIES = frozenset(("pytorch", "jax", "tensorflow", "cupy"))
ZERO_GRAD = re.compile(r"zero_?grad", re.IGNORECASE)  # in names of ranges


def kernel_storm(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """A loop launches the same few tiny operations over and over.

    Symptom: at least 100 operations in a row on a stream, each under 10 µs, that repeat a pattern of up to four
    operations.
    Cause: a Python loop over elements: `tensor[i, j] = x`, one `.item()` or one copy per element, or an optimizer that
    updates each parameter alone.
    Remedy: one vectorised operation, or build the values on the host and copy them once.

    A kernel under 10 µs takes less time than its own launch. 100 launches cost about 1 ms, the least that is worth a
    change. Kernels of a program without a tensor library are its own loop, so that only storms of copies and memsets
    count there. Claims the idle causes `launch`, `api` and `host` of the gaps inside the storms.
    """
    rows, storm = _storm_operations(capture, device)
    if len(rows) == 0:
        return
    first = np.flatnonzero(np.diff(storm, prepend=-1))
    names, which = capture.range_names(_launching_ranges(capture, rows[first]))
    trace, label = capture.trace, which[storm]
    inside = np.ones(len(rows), np.bool_)
    inside[first] = False  # the gap before a storm is not inside it
    label_of = np.full(len(trace.operations), -1, np.int64)
    label_of[rows[inside]] = label[inside]
    gaps = device.gaps_before(label_of >= 0)
    gap_label = label_of[device.gap_operation[gaps]]
    for number, name in enumerate(names):
        chosen = label == number
        yield _storm_draft(trace, device, name, rows[chosen], storm[chosen], gaps[gap_label == number])


def _storm_draft(
    trace: Trace, device: GpuWork, name: str, rows: Rows, storm: Times, gaps: Rows | Times
) -> FindingDraft:
    """Return the finding on the operations `rows` in the storms of one range, with the gaps inside them."""
    members = trace.operations.select("start", "end", pl.col("name").cast(pl.String))[rows]
    each = members.with_columns(pl.Series("storm", storm)).group_by("storm", maintain_order=True)
    longest = each.agg(
        pl.col("start").first(),
        pl.max_horizontal(pl.col("end").last(), pl.col("start").first()),
        pl.len().alias("count"),
    ).sort("count", "start", "end", descending=[True, False, False])
    frequent = members.group_by("name").len().sort("len", "name", descending=[True, False]).head(3)
    values = {
        "operations": quantity(len(rows), "tiny operation"),
        "where": f" in `{name}`" if name else "",
        "kinds": join_words([f"{count:,} {kind}" for kind, count in frequent.iter_rows()]),
        "loops": quantity(len(longest), "loop"),
        "most": f"{longest['count'][0]:,}",
        "median": duration(float((members["end"] - members["start"]).median() or 0)),  # type: ignore[arg-type]
    }
    return FindingDraft(
        "kernel_storm",
        device,
        (GapClaim(("launch", "api", "host"), gaps),),
        values,
        "zero_grad" if ZERO_GRAD.search(name) else "",
        key=name,
        evidence=tuple(
            Place(f"{count:,} tiny operations in {duration(end - start)}", start, end, device.id)
            for start, end, count in longest.select("start", "end", "count").head(MAX_PLACES).iter_rows()
        ),
    )


def _launching_ranges(capture: MeasuredCapture, rows: Rows) -> Times:
    """Return the innermost range (row of Trace.ranges) in which each of these operations is launched, or -1."""
    launch = launch_rows(capture.trace.operations)[rows]
    owner = np.full(len(rows), -1, np.int64)
    known = launch >= 0
    thread, start = (capture.trace.api[name].to_numpy()[launch[known]] for name in ("thread", "start"))
    owner[known] = capture.ranges_at(thread, start)
    return owner


def _storm_operations(capture: MeasuredCapture, device: GpuWork) -> tuple[Rows, Times]:
    """Return the operations in storms, stream by stream, and the number of the storm of each."""
    trace, work = capture.trace, device.activity
    stream, name, shape = (device.column(column) for column in ("stream", "name", "shape"))
    tiny = tiny_operations(work.start, work.end, shape, trace.shapes)
    tensors = TENSOR_LIBRARIES.intersection((capture.program.kind, *capture.program.frameworks))
    members, counts = [EMPTY.start], [EMPTY.start]
    for row, own_count in enumerate(np.bincount(stream).tolist()):
        if own_count >= MIN_STORM:
            own = np.flatnonzero((stream == row) & (work.codes != COMMUNICATION))
            stretches = storms(name[own], tiny[own])
            if not tensors:
                stretches = _without_kernels(stretches, work.codes[own] == COMPUTE)
            counts.append(stretches.end - stretches.start)
            members += [own[first:last] for first, last in zip(*stretches, strict=True)]
    count = np.concatenate(counts)
    return work.rows[np.concatenate(members)], np.repeat(np.arange(len(count)), count)


def _without_kernels(stretches: Intervals, kernel: NDArray[np.bool_]) -> Intervals:
    """Return the stretches of operations without kernels, as ranges of positions."""
    kernels_before = np.concatenate([[0], np.cumsum(kernel)])
    kept = kernels_before[stretches.start] == kernels_before[stretches.end]
    return Intervals(stretches.start[kept], stretches.end[kept])
