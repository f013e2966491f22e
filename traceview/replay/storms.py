"""Find the storms of a graph (measure/storms.py) with their patterns: what one round of the loop launches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, rows_by_code, runs
from traceview.measure.kernels.families import shape_kinds
from traceview.measure.storms import IS_FUSED, IS_MATRIX, MAX_TINY, repeats
from traceview.model.trace import CLASSES, names_match
from traceview.replay.graph import FAMILIES, Codes, DependencyGraph, Mask

MIN_ROUNDS = 10  # consecutive repetitions of a pattern
MIN_OPERATIONS = 24  # in a storm; fewer are not worth a change
MAX_IRREGULAR_ROUNDS = 2  # between two ranges of the same pattern
MAX_PATTERN = 16  # operations in a pattern
# Without a pattern, because PyTorch selects variants of a kernel by alignment: mean operations for each name.
MIN_MEAN_REPEATS = 32
MIN_COVERAGE = 0.8  # share of a range of small operations that a pattern covers
CLASS_COUNT = len(CLASSES)
# A name that all elementwise operations share. A round may hold several of them.
SHARED = r"^(vectorized_|unrolled_)?elementwise_kernel$"
MIN_SHARED_ROUND = 4  # operations in a round that has only shared names
# Collectives by the names of their kernels, in all libraries: those whose result is a copy, and those that sum.
COLLECTIVES = {"gather": r"(?i)all_?gather|broadcast", "reduction": r"(?i)all_?reduce|reduce_?scatter"}
LAYERS = (FAMILIES.index("fused"), FAMILIES.index("matrix"))


def name_families(shapes: pl.DataFrame, shape: NDArray[np.uint32], names: pl.Series) -> Codes:
    """Return the index in FAMILIES of each operation; `shape` is its row in Trace.shapes, `names` are short names."""
    by_shape = np.zeros(len(shapes), np.int64)
    for name, chosen in (("fused", IS_FUSED), ("matrix", IS_MATRIX)):
        by_shape[shape_kinds(shapes).select(chosen).to_series().to_numpy()] = FAMILIES.index(name)
    families: Codes = by_shape[shape]
    for name, pattern in (("shared", SHARED), *COLLECTIVES.items()):
        families[(families == 0) & names_match(names, pattern)] = FAMILIES.index(name)
    return families


class Storm(NamedTuple):
    """The operations of a loop, in order: one thread, one stream, one iteration. `kept` marks one round."""

    members: Codes
    kept: Mask

    @property
    def rounds(self) -> int:
        """The approximate number of elements of the loop."""
        return len(self.members) // max(int(np.count_nonzero(self.kept)), 1)


def find_storms(graph: DependencyGraph) -> list[Storm]:
    """Return the storms of all threads and streams.

    A storm has at least one kernel. Copies alone are scalars that are read, or buckets that DDP fills.
    """
    ops = graph.operations
    usable = (ops.iteration >= 0) & (ops.code != CLASSES.index("communication")) & (ops.call >= 0)
    tiny = (ops.end - ops.start <= MAX_TINY) & usable & ~np.isin(ops.family, LAYERS)
    thread = np.where(ops.call >= 0, graph.calls.thread[ops.call], -1) if len(graph.calls.row) else ops.call
    _, group = np.unique(np.stack([ops.stream, thread]), axis=1, return_inverse=True)
    storms = []
    for _, members in rows_by_code(group):
        rows = members[np.argsort(ops.call[members], kind="stable")]
        # A storm ends at the end of an iteration and at an operation that is not small.
        breaks = np.diff(ops.iteration[rows], prepend=-1) != 0
        stretch = np.cumsum(breaks | ~tiny[rows] | np.concatenate([[False], ~tiny[rows][:-1]]))
        small = rows[tiny[rows]]
        code = ops.name[small] * CLASS_COUNT + ops.code[small]
        storms += _storms_of_group(small, stretch[tiny[rows]], code, ops.family[small] == FAMILIES.index("shared"))
    kernels = ops.code == CLASSES.index("compute")
    return [storm for storm in storms if len(storm.members) >= MIN_OPERATIONS and kernels[storm.members].any()]


def _storms_of_group(rows: Codes, stretch: Codes, code: Codes, shared: Mask) -> list[Storm]:
    regular = _regular_ranges(code, stretch)
    edges = np.flatnonzero(np.diff(stretch, prepend=-1, append=-1))
    storms = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if end - begin < MIN_ROUNDS:
            continue
        mine = [pattern for pattern in regular if begin <= pattern[0] < end]
        start, stop = (begin + place for place in _shuffled_range(code[begin:end]))
        if max((last - first for first, last, _ in mine), default=0) < MIN_COVERAGE * (stop - start):
            storms.append(_storm(rows, code, shared, slice(start, stop), np.unique(code[start:stop])))
            mine = [pattern for pattern in mine if pattern[1] <= start or pattern[0] >= stop]
        else:
            start, stop = begin, begin
        lower = begin
        for place, (first, last, period) in enumerate(mine):
            # Extend the storm no further than to its neighbours.
            lower = max(lower, stop if stop <= first else begin)
            next_starts = (start, *(later[0] for later in mine[place + 1 :]))
            upper = min([end, *(at for at in next_starts if at >= last)])
            pattern = code[first : first + period]
            first, last = _with_partial_rounds(code, first, last, pattern, lower, upper)
            storms.append(_storm(rows, code, shared, slice(first, last), pattern))
            lower = last
    return storms


def _shuffled_range(code: Codes) -> tuple[int, int]:
    """Return the longest range with few names, each MIN_MEAN_REPEATS times on average; (0, 0) if there is none."""
    names, counts = np.unique(code, return_counts=True)
    names = names[np.argsort(-counts, kind="stable")]
    best = (0, 0)
    for kinds in range(1, min(MAX_PATTERN, len(names), len(code) // MIN_MEAN_REPEATS) + 1):
        inside = np.isin(code, names[:kinds])
        begin, end = runs(inside)
        longest = np.argmax(end - begin)  # the most frequent name has a run
        start, stop = int(begin[longest]), int(end[longest])
        if stop - start >= max(MIN_MEAN_REPEATS * kinds, best[1] - best[0] + 1):
            best = (start, stop)
    return best


def _storm(rows: Codes, code: Codes, shared: Mask, chosen: slice, pattern: Codes) -> Storm:
    """Return the storm of chosen rows; it keeps the first operations of each name, as many as in the pattern."""
    mine = code[chosen]
    order = np.argsort(mine, kind="stable")
    names, first, sizes = np.unique(mine[order], return_index=True, return_counts=True)
    turn = np.zeros(len(mine), np.int64)
    turn[order] = np.arange(len(mine)) - np.repeat(first, sizes)
    # A name outside the pattern is from an irregular round, or from the loop that follows directly: keep one.
    wanted = np.ones(len(names), np.int64)
    known, per = np.unique(pattern, return_counts=True)
    wanted[np.searchsorted(names, known)] = per
    if shared[chosen].all():
        wanted = np.maximum(wanted, MIN_SHARED_ROUND // len(names))
    return Storm(rows[chosen], turn < wanted[np.searchsorted(names, mine)])


def _with_partial_rounds(code: Codes, start: int, stop: int, pattern: Codes, begin: int, end: int) -> tuple[int, int]:
    """Return the range extended by at most one partial round before and after it."""
    period = len(pattern)
    before, after = code[max(begin, start - period) : start], code[stop : min(end, stop + period)]
    alien = np.flatnonzero(~np.isin(before, pattern))
    less = len(before) - (int(alien[-1]) + 1 if len(alien) else 0)
    alien = np.flatnonzero(~np.isin(after, pattern))
    return start - less, stop + (int(alien[0]) if len(alien) else len(after))


def _regular_ranges(code: Codes, stretch: Codes) -> list[tuple[int, int, int]]:
    """Return (begin, end, period) of the ranges with a pattern. The shortest period wins."""
    ranges: list[tuple[int, int, int]] = []
    taken = np.zeros(len(code), np.bool_)
    for period in range(1, min(MAX_PATTERN, len(code) - 1) + 1):
        for begin, end in zip(*(edges.tolist() for edges in _repeating_ranges(code, stretch, period)), strict=True):
            free = np.flatnonzero(~taken[begin:end]) + begin
            if len(free) >= period * MIN_ROUNDS and len(free) == free[-1] - free[0] + 1:
                taken[free] = True
                ranges.append((int(free[0]), int(free[-1]) + 1, period))
    return sorted(ranges)


def _repeating_ranges(code: Codes, stretch: Codes, period: int) -> tuple[Times, Times]:
    """Return the long ranges in which each operation repeats the one a period before, with their first round."""
    same = repeats(code, period) & repeats(stretch, period)
    begin, end = runs(same)
    kept = end - begin >= period * (MIN_ROUNDS - 1)
    begin, end = begin[kept], end[kept]
    if not len(begin):
        return begin, end
    # Join two ranges of a pattern across an irregular round, for example one that lacks an operation.
    bridged = (begin[1:] - end[:-1] <= MAX_IRREGULAR_ROUNDS * period) & (stretch[begin[1:]] == stretch[end[:-1] - 1])
    first, last = np.concatenate([[True], ~bridged]), np.concatenate([~bridged, [True]])
    return begin[first] - period, end[last]
