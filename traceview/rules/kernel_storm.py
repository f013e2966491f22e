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

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION
from traceview.model import Place
from traceview.rules.base import DeviceFacts, Draft, Facts
from traceview.rules.ledger import Idle
from traceview.rules.words import duration, folded, listed, many

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


def _runs(facts: Facts, device: DeviceFacts) -> tuple[Times, Times]:
    """Return the operations in storms, stream by stream, and the number of the storm that each belongs to."""
    operations, work = facts.analysis.trace.operations, device.activity
    stream = operations["stream"].to_numpy()[work.rows]
    own = work.codes != COMMUNICATION
    order = np.concatenate([np.flatnonzero((stream == use.stream) & own) for use in device.use.streams])
    rows, stream = work.rows[order], stream[order]
    tiny = (work.end - work.start)[order] <= TINY
    name = operations["name"].to_physical().to_numpy()[rows]
    member = np.zeros(len(rows), np.bool_)
    for period in PERIODS:
        member |= _repeating(name, stream, tiny, period)
    first = np.diff(member.astype(np.int8), prepend=0) == 1
    return rows[member], np.cumsum(first)[member] - 1


def _repeating(
    name: NDArray[np.uint32], stream: NDArray[np.int32], tiny: NDArray[np.bool_], period: int
) -> NDArray[np.bool_]:
    """Mark the operations of runs of at least LONG that repeat the one `period` before on their stream."""
    same = np.zeros(len(name), np.bool_)
    same[period:] = (name[period:] == name[:-period]) & (stream[period:] == stream[:-period])
    same &= tiny
    edges = np.flatnonzero(np.diff(same.astype(np.int8), prepend=0, append=0))
    starts, ends = edges[::2], edges[1::2]
    long = ends - starts >= LONG
    marks = np.zeros(len(name) + 1, np.int8)
    marks[starts[long]] = 1
    marks[ends[long]] = -1
    return np.cumsum(marks[:-1], dtype=np.int8) > 0


def _drafts(facts: Facts, device: DeviceFacts, rows: Times, run: Times) -> Iterator[Draft]:
    trace = facts.analysis.trace
    first = np.flatnonzero(np.diff(run, prepend=-1))
    launch = trace.operations["launch"].fill_null(-1).to_numpy()[rows[first]]
    owner = np.full(len(first), -1, np.int64)
    known = launch >= 0
    thread, start = (trace.api[name].to_numpy()[launch[known]] for name in ("thread", "start"))
    owner[known] = facts.ranges_at(thread.astype(np.int64), start)
    names = [folded(str(trace.ranges["name"][int(row)])) if row >= 0 else "" for row in owner]
    for name in dict.fromkeys(names):
        storms = np.array([other == name for other in names])
        yield _draft(facts, device, rows[storms[run]], run[storms[run]], name)


def _draft(facts: Facts, device: DeviceFacts, rows: Times, run: Times, name: str) -> Draft:
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
        advice=f"{what} take {duration(float(np.median(end - start)))} each, in "
        f"{many(len(counts), 'loop')} of up to {int(counts.max()):,}; launching them takes longer "
        f"than running them. {ADVICE}",
        code=CODE,
        claims=(Idle(("launch", "api", "host"), rows=np.isin(device.gap_operation, rows[inside])),),
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
