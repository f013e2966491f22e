"""A loop launches the same few tiny operations over and over.

Symptom: at least 100 operations in a row on a stream, each under 10 µs, that repeat a pattern of up to four
operations.
Cause: a Python loop over elements: `tensor[i, j] = x`, one `.item()` or one copy per element, or an optimizer that
updates each parameter alone.
Remedy: one vectorised operation, or build the values on the host and copy them once.

A kernel under 10 µs takes less time than its own launch. 100 launches cost about 1 ms, the least that is worth a
change. Kernels of a program without a tensor library are its own loop, so that only storms of copies
and memsets count there. Claims the idle causes `launch`, `api` and `host` of the gaps inside the storms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import EMPTY, Intervals, Rows, Times
from traceview.measure.activity import COMMUNICATION, COMPUTE
from traceview.measure.shared_work import launch_rows
from traceview.measure.storms import MIN_STORM, storms, tiny_operations
from traceview.model.findings import Place
from traceview.model.trace import Trace
from traceview.model.units import duration, quantity
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import GapClaim
from traceview.pricing.texts import join_words

TENSOR_LIBRARIES = frozenset(("pytorch", "jax", "tensorflow", "cupy"))
ZERO_GRAD = re.compile(r"zero_?grad", re.IGNORECASE)  # in names of ranges
MAX_PLACES = 5


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield one finding for each NVTX range with storms, and one for storms outside ranges."""
    rows, storm = _storm_operations(capture, device)
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
        yield _draft(trace, device, name, rows[chosen], storm[chosen], gaps[gap_label == number])


def _draft(trace: Trace, device: GpuWork, name: str, rows: Rows, storm: Times, gaps: Rows | Times) -> FindingDraft:
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


kernel_storm = Rule("kernel_storm", find)
