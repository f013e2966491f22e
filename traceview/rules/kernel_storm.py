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
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import EMPTY, Intervals, Rows, Times
from traceview.measure.activity import COMMUNICATION, COMPUTE
from traceview.measure.shared_work import launch_rows
from traceview.measure.storms import MIN_STORM, storms, tiny_operations
from traceview.model.findings import Place
from traceview.model.sums import Counts, KeyedSums
from traceview.model.units import duration, quantity
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, OldRule
from traceview.pricing.claims import Collected, GapGroup, IdleClaim
from traceview.pricing.texts import join_words

TENSOR_LIBRARIES = frozenset(("pytorch", "jax", "tensorflow", "cupy"))
ZERO_GRAD = re.compile(r"zero_?grad", re.IGNORECASE)  # in names of ranges
MAX_PLACES = 5
LONGEST_FIRST = ("count", "start", "end")


class _KernelStormSums(NamedTuple):
    """Storms by the range that launches them: operations by name, operations by length, and the longest storms.

    `storms` is the number of storms by range. `names` has the columns range, name and count, `lengths` range, length
    and count, and `longest` range, start, end and count.
    """

    storms: dict[str, int]
    names: KeyedSums
    lengths: KeyedSums
    longest: KeyedSums


def _collect(part: CapturePart, device: DevicePart) -> Collected[_KernelStormSums]:
    """Label the gaps inside storms with the range that launches them."""
    rows, storm = _storm_operations(part, device)
    first = np.flatnonzero(np.diff(storm, prepend=-1))
    names, which = part.range_names(_launching_ranges(part, rows[first]))
    operations = part.trace.operations
    members = operations.select("start", "end", "name")[rows].select(
        pl.Series("range", [names[at] for at in which.tolist()], pl.String).gather(storm),
        pl.col("name").cast(pl.String),
        "start",
        "end",
        length=pl.col("end") - pl.col("start"),
        storm=storm,
        count=pl.lit(1, pl.Int64),
    )
    each = members.group_by("range", "storm", maintain_order=True).agg(
        pl.col("start").first(),
        pl.max_horizontal(pl.col("end").last(), pl.col("start").first()),
        pl.len().alias("count"),
    )
    longest = each.sort(LONGEST_FIRST, descending=[True, False, False]).group_by("range", maintain_order=True)
    kept = longest.head(MAX_PLACES).select("range", "start", "end", pl.col("count").cast(pl.Int64))
    inside = np.ones(len(rows), np.bool_)
    inside[first] = False  # the gap before a storm is not part of it
    label = np.zeros(len(operations), np.int64)
    label[rows] = which[storm]
    marked = np.zeros(len(operations), np.bool_)
    marked[rows[inside]] = True
    gaps = device.gaps_before(marked)
    sums = _KernelStormSums(
        dict(each.group_by("range", maintain_order=True).len().iter_rows()),
        KeyedSums.from_rows(members.select("range", "name", "count"), "range", "name"),
        KeyedSums.from_rows(members.select("range", "length", "count"), "range", "length"),
        KeyedSums(kept, ("range", "start", "end")),
    )
    return Collected(sums, {"inside": GapGroup(gaps, label[device.gap_operation[gaps]], tuple(names))})


def _launching_ranges(part: CapturePart, rows: Rows) -> Times:
    """Return the innermost range (row of Trace.ranges) in which each of these operations is launched, or -1."""
    launch = launch_rows(part.trace.operations)[rows]
    owner = np.full(len(rows), -1, np.int64)
    known = launch >= 0
    thread, start = (part.trace.api[name].to_numpy()[launch[known]] for name in ("thread", "start"))
    owner[known] = part.ranges_at(thread, start)
    return owner


def _storm_operations(part: CapturePart, device: DevicePart) -> tuple[Rows, Times]:
    """Return the operations in storms, stream by stream, and the number of the storm of each."""
    trace, work = part.trace, device.activity
    stream, name, shape = (device.column(trace, column) for column in ("stream", "name", "shape"))
    tiny = tiny_operations(work.start, work.end, shape, trace.shapes)
    tensors = TENSOR_LIBRARIES.intersection((part.program.kind, *part.program.frameworks))
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


def _decide(facts: CaptureFacts, sums: Mapping[int, _KernelStormSums]) -> Iterator[FindingDraft]:
    """Yield one finding for each NVTX range with storms, and one for storms outside ranges."""
    for device in facts.devices:
        for name in sums[device.row].storms:
            yield _draft(device, sums[device.row], name)


def _draft(device: DeviceFacts, sums: _KernelStormSums, name: str) -> FindingDraft:
    own = pl.col("range") == name
    kinds, lengths = sums.names.frame.filter(own), sums.lengths.frame.filter(own).sort("length")
    longest = sums.longest.frame.filter(own).sort(LONGEST_FIRST, descending=[True, False, False])
    frequent = kinds.sort("count", "name", descending=[True, False]).head(3)
    values = {
        "operations": quantity(int(kinds["count"].sum()), "tiny operation"),
        "where": f" in `{name}`" if name else "",
        "kinds": join_words([f"{count:,} {kind}" for kind, count in frequent.select("name", "count").iter_rows()]),
        "loops": quantity(sums.storms[name], "loop"),
        "most": f"{longest['count'][0]:,}",
        "median": duration(Counts(lengths["length"].to_numpy(), lengths["count"].to_numpy()).median),
    }
    return FindingDraft(
        "kernel_storm",
        device,
        (IdleClaim(("launch", "api", "host"), "inside", frozenset((name,))),),
        values,
        "zero_grad" if ZERO_GRAD.search(name) else "",
        key=name,
        evidence=tuple(
            Place(f"{count:,} tiny operations in {duration(end - start)}", start, end, device.use.id)
            for _, start, end, count in longest.head(MAX_PLACES).iter_rows()
        ),
    )


kernel_storm = OldRule("kernel_storm", _decide, _collect, place=120)
