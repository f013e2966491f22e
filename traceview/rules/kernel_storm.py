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

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import EMPTY, Intervals, Rows, Times
from traceview.measure.activity import COMMUNICATION, COMPUTE
from traceview.measure.per_frame import launch_rows
from traceview.model.findings import Place
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.figures import join_words
from traceview.pricing.ledger import IdleClaim
from traceview.rules.advice.launches import KERNEL_STORM
from traceview.units import duration, quantity

MAX_TINY = 10_000  # ns
MIN_STORM = 100  # operations
PERIODS = (1, 2, 3, 4)
TENSOR_LIBRARIES = frozenset(("pytorch", "jax", "tensorflow", "cupy"))
MAX_PLACES = 5


def kernel_storm(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each NVTX range with storms, and one for storms outside ranges."""
    for device in facts.devices:
        rows, storm = _storm_operations(facts, device)
        if len(rows):
            yield from _drafts(facts, device, rows, storm)


def _storm_operations(facts: CaptureFacts, device: DeviceFacts) -> tuple[Rows, Times]:
    """Return the operations in storms, stream by stream, and the number of the storm of each."""
    trace, work = facts.analysis.trace, device.activity
    stream, name = device.column(trace, "stream"), device.column(trace, "name")
    tiny = work.end - work.start <= MAX_TINY
    tensors = TENSOR_LIBRARIES.intersection((facts.program.kind, *facts.program.frameworks))
    members, counts = [EMPTY.start], [EMPTY.start]
    for use in device.use.streams:
        if use.operation_count >= MIN_STORM:
            own = np.flatnonzero((stream == use.stream) & (work.codes != COMMUNICATION))
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


def storms(name: NDArray[Any], tiny: NDArray[np.bool_], min_length: int = MIN_STORM) -> Intervals:
    """Return the storms among the operations of a stream, as ranges of positions."""
    runs = [_long_runs(_repeats(name, tiny, period), min_length) for period in PERIODS]
    return intervals.union(*(np.concatenate(sides) for sides in zip(*runs, strict=True)))


def _repeats(name: NDArray[Any], tiny: NDArray[np.bool_], period: int) -> NDArray[np.bool_]:
    """Mark tiny operations with the same name as the operation `period` positions earlier."""
    same = np.zeros(len(name), np.bool_)
    np.equal(name[period:], name[:-period], out=same[period:])
    same &= tiny
    return same


def _long_runs(marked: NDArray[np.bool_], min_length: int) -> Intervals:
    """Return the runs of at least `min_length` marks."""
    # Long runs are rare. A long run covers three consecutive samples of every step-th mark: search only near those.
    step = min_length // 3
    samples = marked[::step]
    three = samples[:-2] & samples[1:-1] & samples[2:]
    if not three.any():
        return EMPTY
    near = np.zeros(len(samples) + 1, np.bool_)
    for steps in range(4):
        near[steps : steps + len(three)] |= three
    inside = np.zeros(len(marked) + 2, np.bool_)
    np.logical_and(marked, np.repeat(near[1:], step)[: len(marked)], out=inside[1:-1])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    start, end = edges[::2], edges[1::2]
    kept = end - start >= min_length
    return Intervals(start[kept], end[kept])


def _drafts(facts: CaptureFacts, device: DeviceFacts, rows: Rows, storm: Times) -> Iterator[FindingDraft]:
    trace = facts.analysis.trace
    first = np.flatnonzero(np.diff(storm, prepend=-1))
    launch = launch_rows(trace.operations)[rows[first]]
    owner = np.full(len(first), -1, np.int64)
    known = launch >= 0
    thread, start = (trace.api[name].to_numpy()[launch[known]] for name in ("thread", "start"))
    owner[known] = facts.ranges_at(thread, start)
    names, which = facts.range_names(owner)
    for at in dict.fromkeys(which.tolist()):
        chosen = (which == at)[storm]
        yield _draft(facts, device, rows[chosen], storm[chosen], names[at])


def _draft(facts: CaptureFacts, device: DeviceFacts, rows: Rows, storm: Times, name: str) -> FindingDraft:
    trace, fix = facts.analysis.trace, KERNEL_STORM.choose(facts.program)
    start, end = trace.operations["start"].to_numpy()[rows], trace.operations["end"].to_numpy()[rows]
    first = np.flatnonzero(np.diff(storm, prepend=-1))
    counts = np.diff(first, append=len(rows))
    # In slices, all of them together: no border lies in a storm (slices/plan.py).
    total = device.shown(f"operations in storms {name}", len(rows))
    loops = device.shown(f"storms {name}", len(counts))
    kinds = device.shown(f"names in storms {name}", dict(trace.operations["name"][rows].value_counts().iter_rows()))
    frequent = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))[:3]
    operations = join_words([f"{count:,} {kind}" for kind, count in frequent])
    median = device.totals.median(f"length in storms {name}", end - start)
    longest = device.shown(f"longest storms {name}", _longest_storms(start, end, first, counts))
    inside = np.ones(len(rows), np.bool_)
    inside[first] = False  # the gap before a storm is not part of it
    where = f" in `{name}`" if name else ""
    return FindingDraft(
        id="kernel_storm",
        device=device,
        title=f"{quantity(total, 'tiny operation')} launched in a loop{where} keep the GPU waiting {{cost}}",
        advice=f"{operations} run in {quantity(loops, 'loop')} of up to {max(longest.values()):,} operations; their "
        f"median is {duration(median)}. Launching them takes longer than running them. "
        f"{fix.advice}",
        code=fix.code,
        change="fuse",
        key=name,
        claims=(IdleClaim(("launch", "api", "host"), rows=device.gaps_before(np.sort(rows[inside]))),),
        evidence=_places(device, longest),
    )


def _longest_storms(start: Times, end: Times, first: Times, counts: Times) -> dict[str, int]:
    """Return the number of operations of the longest storms, by start and end."""
    last = first + counts - 1
    longest = np.argsort(-counts, kind="stable")[:MAX_PLACES].tolist()
    return {f"{start[first[row]]} {max(end[last[row]], start[first[row]])}": int(counts[row]) for row in longest}


def _places(device: DeviceFacts, storms: Mapping[str, int]) -> tuple[Place, ...]:
    times = sorted((-count, *map(int, times.split())) for times, count in storms.items())
    return tuple(
        Place(f"{-count:,} tiny operations in {duration(end - start)}", start, end, device.use.id)
        for count, start, end in times[:MAX_PLACES]
    )
