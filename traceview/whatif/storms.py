"""Storms: long stretches of small operations that repeat a few, over and over, as a loop over elements launches them.

A layer is no element: what multiplies matrices, normalises, attends or is fused already never belongs to a storm,
however small it is, so that a deep model of small layers is not taken for one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.model.trace import CLASSES
from traceview.whatif.graph import Codes, Graph, Mask

TINY = 10_000  # ns: such a kernel takes less than its own launch
ROUNDS = 10  # of a pattern, one after the other
FEWEST = 24  # operations in a storm: fewer are not worth a change
IRREGULAR = 2  # rounds that may differ between two stretches of a pattern
LONGEST = 16  # operations in a pattern
# Without a pattern (PyTorch picks among variants of a kernel by alignment): operations for each name among them.
SHUFFLED = 32
MOSTLY = 0.8  # of a run of small operations, the part that one pattern must cover to be what the run is
COUNT = len(CLASSES)
# One short name for every operation on elements: a round may hold several, where nothing else tells its length.
SHARED = r"^(vectorized_|unrolled_)?elementwise_kernel$"
AT_LEAST = 4  # operations in such a round
FUSED = r"(?i)multi_tensor|fused|foreach|triton"
MATRIX = r"(?i)gemm|gemv|nvjet|xmma|cutlass|cublas|splitk|wgmma|matmul|conv|winograd|flash|fmha|attention|^kernel\d?$"
MATRIX += r"|lstm|gru|rnn|cudnn|cufft"
FAMILIES = ("other", "shared", "fused", "matrix")
LAYERS = (FAMILIES.index("fused"), FAMILIES.index("matrix"))


def families(names: pl.Series) -> Codes:
    """Return the place in FAMILIES of each operation's name."""
    assert isinstance(names.dtype, pl.Enum), "Trace.operations has it so"
    text = names.dtype.categories
    family = np.zeros(len(text), np.int64)
    for place, pattern in enumerate((SHARED, FUSED, MATRIX), start=1):
        family[text.str.contains(pattern).to_numpy()] = place
    found: Codes = family[names.to_physical().to_numpy()]
    return found


@dataclass(frozen=True, slots=True)
class Storm:
    """Operations of one thread on one stream in one iteration, in order; `kept` of them are one round."""

    members: Codes
    kept: Mask

    @property
    def rounds(self) -> int:
        """How many elements the loop goes over, about."""
        return len(self.members) // max(int(np.count_nonzero(self.kept)), 1)


def storms(graph: Graph) -> list[Storm]:
    """Return the storms of all threads and streams.

    Copies alone are none: scalars that are read, and buckets that DDP fills, are not launched by a loop of the user's.
    """
    of = graph.operations
    usable = (of.iteration >= 0) & (of.code != CLASSES.index("communication")) & (of.call >= 0)
    tiny = (of.end - of.start <= TINY) & usable & ~np.isin(of.family, LAYERS)
    thread = np.where(of.call >= 0, graph.calls.thread[of.call], -1) if len(graph.calls.row) else of.call
    _, group = np.unique(np.stack([of.stream, thread]), axis=1, return_inverse=True)
    found = []
    for one in range(int(group.max(initial=-1)) + 1):
        rows = np.flatnonzero(group == one)
        rows = rows[np.argsort(of.call[rows], kind="stable")]
        # Iterations never share a storm; nor do the stretches before and after an operation that belongs to none.
        breaks = np.diff(of.iteration[rows], prepend=-1) != 0
        part = np.cumsum(breaks | ~tiny[rows] | np.concatenate([[False], ~tiny[rows][:-1]]))
        small = rows[tiny[rows]]
        code = (of.name[small] * COUNT + of.code[small]) * len(FAMILIES) + of.family[small]
        found += _of_group(small, part[tiny[rows]], code)
    kernels = of.code == CLASSES.index("compute")
    return [one for one in found if len(one.members) >= FEWEST and kernels[one.members].any()]


def _of_group(rows: Codes, part: Codes, code: Codes) -> list[Storm]:
    regular = _regular(code, part)
    edges = np.flatnonzero(np.diff(part, prepend=-1, append=-1))
    found = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if end - begin < ROUNDS:
            continue
        mine = [one for one in regular if begin <= one[0] < end]
        start, stop = (begin + place for place in _shuffled(code[begin:end]))
        if max((last - first for first, last, _ in mine), default=0) < MOSTLY * (stop - start):
            found.append(_storm(rows, code, start, stop, np.unique(code[start:stop])))
            mine = [one for one in mine if one[1] <= start or one[0] >= stop]
        else:
            start, stop = begin, begin
        lower = begin
        for place, (first, last, period) in enumerate(mine):
            # No further than to the storms on both sides.
            lower = max(lower, stop if stop <= first else begin)
            upper = min([end, *(one for one in (start, *(later[0] for later in mine[place + 1 :])) if one >= last)])
            pattern = code[first : first + period]
            first, last = _wider(code, first, last, pattern, lower, upper)
            found.append(_storm(rows, code, first, last, pattern))
            lower = last
    return found


def _shuffled(code: Codes) -> tuple[int, int]:
    """Return the longest stretch of a few names, each SHUFFLED times in it on average; (0, 0) without one."""
    names, counts = np.unique(code, return_counts=True)
    names = names[np.argsort(-counts, kind="stable")]
    best = (0, 0)
    for kinds in range(1, min(LONGEST, len(names), len(code) // SHUFFLED) + 1):
        inside = np.isin(code, names[:kinds])
        edges = np.flatnonzero(np.diff(np.concatenate([[0], inside.view(np.int8), [0]])))
        longest = int(np.argmax(edges[1::2] - edges[::2])) if len(edges) else 0
        start, stop = (int(edges[2 * longest]), int(edges[2 * longest + 1])) if len(edges) else (0, 0)
        if stop - start >= max(SHUFFLED * kinds, best[1] - best[0] + 1):
            best = (start, stop)
    return best


def _storm(rows: Codes, code: Codes, begin: int, end: int, pattern: Codes) -> Storm:
    """Return the storm of [begin, end), of which the first operations of each name in the pattern are kept."""
    mine = code[begin:end]
    order = np.argsort(mine, kind="stable")
    names, first, sizes = np.unique(mine[order], return_index=True, return_counts=True)
    turn = np.zeros(len(mine), np.int64)
    turn[order] = np.arange(len(mine)) - np.repeat(first, sizes)
    # What is not in the pattern is of a round that differs, or of a loop right behind the first: it happens once.
    wanted = np.ones(len(names), np.int64)
    known, per = np.unique(pattern, return_counts=True)
    wanted[np.searchsorted(names, known)] = per
    if (names % len(FAMILIES) == FAMILIES.index("shared")).all():
        wanted = np.maximum(wanted, AT_LEAST // len(names))
    return Storm(rows[begin:end], turn < wanted[np.searchsorted(names, mine)])


def _wider(code: Codes, start: int, stop: int, pattern: Codes, begin: int, end: int) -> tuple[int, int]:
    """Return the stretch with the unfinished rounds before and after it: at most one of each."""
    period = len(pattern)
    before, after = code[max(begin, start - period) : start], code[stop : min(end, stop + period)]
    alien = np.flatnonzero(~np.isin(before, pattern))
    less = len(before) - (int(alien[-1]) + 1 if len(alien) else 0)
    alien = np.flatnonzero(~np.isin(after, pattern))
    return start - less, stop + (int(alien[0]) if len(alien) else len(after))


def _regular(code: Codes, part: Codes) -> list[tuple[int, int, int]]:
    """Return (begin, end, period) of the stretches with a pattern; the shortest period that explains a place wins."""
    found: list[tuple[int, int, int]] = []
    taken = np.zeros(len(code), np.bool_)
    for period in range(1, min(LONGEST, len(code) - 1) + 1):
        for begin, end in zip(*(edges.tolist() for edges in _repeats(code, part, period)), strict=True):
            free = np.flatnonzero(~taken[begin:end]) + begin
            if len(free) >= period * ROUNDS and len(free) == free[-1] - free[0] + 1:
                taken[free] = True
                found.append((int(free[0]), int(free[-1]) + 1, period))
    return sorted(found)


def _repeats(code: Codes, part: Codes, period: int) -> tuple[Times, Times]:
    """Return the long stretches in which each place repeats the one a period before, with their first round."""
    same = np.zeros(len(code), np.bool_)
    same[period:] = (code[period:] == code[:-period]) & (part[period:] == part[:-period])
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.view(np.int8), [0]])))
    begin, end = edges[::2], edges[1::2]
    kept = end - begin >= period * (ROUNDS - 1)
    begin, end = begin[kept], end[kept]
    if not len(begin):
        return begin, end
    # A round with one operation less is still a round: what lies between two stretches of the pattern is bridged.
    bridged = (begin[1:] - end[:-1] <= IRREGULAR * period) & (part[begin[1:]] == part[end[:-1] - 1])
    first, last = np.concatenate([[True], ~bridged]), np.concatenate([~bridged, [True]])
    return begin[first] - period, end[last]
