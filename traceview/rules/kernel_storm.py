"""A storm of tiny operations: the same few, over and over, from one loop.

Symptom: a hundred or more operations in a row on a stream, each under 10 µs, that repeat a pattern of at
most four.
Cause: a Python loop over elements: `tensor[i, j] = x`, one `.item()` or one copy per element, an optimizer
that visits each parameter alone.
Remedy: one vectorised operation; build on the host and copy once.

TINY: a kernel below 10 µs takes less time than its own launch. LONG: a hundred launches cost about a
millisecond, the least that is worth a change. Claims the idle causes `launch`, `api` and `host` of the
gaps inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import EMPTY, Intervals, Rows, Times
from traceview.measure.activity import COMMUNICATION
from traceview.model.analysis import Place
from traceview.pricing.base import DeviceFacts, Draft, Facts
from traceview.pricing.format import duration, listed, many
from traceview.pricing.largest import middle
from traceview.pricing.ledger import Idle

TINY = 10_000  # ns
LONG = 100  # operations
PERIODS = (1, 2, 3, 4)
ADVICE = (
    "Replace the loop by one operation on the whole tensor: index with tensors instead of numbers, "
    "or fill a NumPy array or a list on the host and copy it once. It always pays: the GPU work of "
    "the whole loop fits in one kernel."
)
CODE = """# for i, j in pairs: mask[i, j] = 1.0
rows, columns = torch.tensor(pairs, device=device).T
mask[rows, columns] = 1.0"""


def kernel_storm(facts: Facts) -> Iterator[Draft]:
    """Yield one finding for each NVTX range (or place without one) that holds storms."""
    for device in facts.devices:
        rows, run = _runs(facts, device)
        if len(rows):
            yield from _drafts(facts, device, rows, run)


def _runs(facts: Facts, device: DeviceFacts) -> tuple[Rows, Times]:
    """Return the operations in storms, stream by stream, and the number of the storm that each belongs to."""
    trace, work = facts.analysis.trace, device.activity
    stream, name = device.column(trace, "stream"), device.column(trace, "name")
    tiny = work.end - work.start <= TINY
    members, counts = [EMPTY.start], [EMPTY.start]
    for use in device.use.streams:
        if use.operation_count >= LONG:
            own = np.flatnonzero((stream == use.stream) & (work.codes != COMMUNICATION))
            found = storms(name[own], tiny[own])
            counts.append(found.end - found.start)
            members += [own[first:last] for first, last in zip(*found, strict=True)]
    count = np.concatenate(counts)
    return work.rows[np.concatenate(members)], np.repeat(np.arange(len(count)), count)


def storms(name: NDArray[Any], tiny: NDArray[np.bool_], long: int = LONG) -> Intervals:
    """Return the storms among the operations of a stream as stretches of them."""
    runs = [_long(_repeating(name, tiny, period), long) for period in PERIODS]
    return intervals.union(*(np.concatenate(sides) for sides in zip(*runs, strict=True)))


def _repeating(name: NDArray[Any], tiny: NDArray[np.bool_], period: int) -> NDArray[np.bool_]:
    """Mark the tiny operations of the same name as the one `period` before."""
    same = np.zeros(len(name), np.bool_)
    np.equal(name[period:], name[:-period], out=same[period:])
    same &= tiny
    return same


def _long(marked: NDArray[np.bool_], long: int) -> Intervals:
    """Return the runs of at least `long` marks."""
    # Nearly all runs are short, and a long one has three on end of every step-th mark: it is looked for near those.
    step = long // 3
    some = marked[::step]
    three = some[:-2] & some[1:-1] & some[2:]
    if not three.any():
        return EMPTY
    near = np.zeros(len(some) + 1, np.bool_)
    for steps in range(4):
        near[steps : steps + len(three)] |= three
    inside = np.zeros(len(marked) + 2, np.bool_)
    np.logical_and(marked, np.repeat(near[1:], step)[: len(marked)], out=inside[1:-1])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    start, end = edges[::2], edges[1::2]
    kept = end - start >= long
    return Intervals(start[kept], end[kept])


def _drafts(facts: Facts, device: DeviceFacts, rows: Rows, run: Times) -> Iterator[Draft]:
    trace = facts.analysis.trace
    first = np.flatnonzero(np.diff(run, prepend=-1))
    launch = trace.operations["launch"].fill_null(-1).to_numpy()[rows[first]]
    owner = np.full(len(first), -1, np.int64)
    known = launch >= 0
    thread, start = (trace.api[name].to_numpy()[launch[known]] for name in ("thread", "start"))
    owner[known] = facts.ranges_at(thread, start)
    names, which = facts.range_names(owner)
    for at in dict.fromkeys(which.tolist()):
        chosen = (which == at)[run]
        yield _draft(facts, device, rows[chosen], run[chosen], names[at])


def _draft(facts: Facts, device: DeviceFacts, rows: Rows, run: Times, name: str) -> Draft:
    trace = facts.analysis.trace
    start, end = trace.operations["start"].to_numpy()[rows], trace.operations["end"].to_numpy()[rows]
    first = np.flatnonzero(np.diff(run, prepend=-1))
    counts = np.diff(first, append=len(rows))
    kinds = trace.operations["name"][rows].value_counts(sort=True).head(3)
    what = listed([f"{count:,} {kind}" for kind, count in kinds.iter_rows()])
    inside = np.ones(len(rows), np.bool_)
    inside[first] = False  # the gap before a storm is not part of it
    where = f" in `{name}`" if name else ""
    return Draft(
        id="kernel_storm",
        device=device,
        title=f"A storm of {many(len(rows), 'tiny operation')}{where} keeps the GPU waiting {{cost}}",
        advice=f"{what} take {duration(middle(end - start))} each, in "
        f"{many(len(counts), 'loop')} of up to {int(counts.max()):,}; launching them takes longer "
        f"than running them. {ADVICE}",
        code=CODE,
        claims=(Idle(("launch", "api", "host"), rows=device.ended_by(np.sort(rows[inside]))),),
        evidence=_places(device, start, end, first, counts),
    )


def _places(device: DeviceFacts, start: Times, end: Times, first: Times, counts: Times) -> tuple[Place, ...]:
    last = first + counts - 1
    longest = np.argsort(-counts, kind="stable")[:5]
    return tuple(
        Place(
            f"{counts[row]:,} tiny operations in {duration(int(end[last[row]] - start[first[row]]))}",
            int(start[first[row]]),
            int(max(end[last[row]], start[first[row]])),
            device.use.id,
        )
        for row in longest
    )
