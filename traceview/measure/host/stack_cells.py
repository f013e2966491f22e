"""The time that each stack stands for: its own, if it is known exactly, else the time nearest to the sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Times, index_ranges, sorted_unique, union
from traceview.model.trace import Trace

FEW = 8  # search cells near pieces if there are this many times more cells
# Files that run only while code is compiled; compiled code itself runs below other files of these packages.
COMPILERS = (
    r"^torch/_dynamo/(?:convert_frame|symbolic_convert)\.py|^torch/_inductor/(?:graph|scheduler|codegen/.*)\.py|"
    r"^triton/compiler/code_generator\.py|^triton/backends/.*compiler\.py|^jax/_src/(?:compiler|interpreters/mlir)\.py"
)


class StackCells(NamedTuple):
    """Disjoint times in order, each with its stack (row of HostEvidence.stacks, -1 if unknown).

    nsys takes the stack of a Python thread when it gets the interpreter lock. While a thread holds the lock, nsys
    waits, and then writes the stack that it sees for each moment that it missed. The thread gives the lock up after
    Python's switch interval, wherever it is, or in a call that waits or launches.

    Attributes:
        moment: When the sample was due.
        holds_gil: Whether the thread held the interpreter lock then.
        seen: The latest moment at which the stack of such a sample was taken; before all times for other samples.
        before: The stack before the missed time, and `since` when it was taken.
        exact: The stacks are known exactly; then the attributes about the lock mean nothing.
    """

    start: Times
    end: Times
    stack: NDArray[np.int32]
    moment: Times
    holds_gil: NDArray[np.bool_]
    seen: Times
    before: NDArray[np.int32]
    since: Times
    exact: bool

    def near(self, pieces: Intervals) -> StackCells:
        """Return the cells that may overlap the members of a union."""
        if len(pieces.start) * FEW > len(self.start):
            return self
        first = np.searchsorted(self.end, pieces.start, side="right")
        count = np.maximum(np.searchsorted(self.start, pieces.end, side="left") - first, 0)
        rows = sorted_unique(index_ranges(first, count))
        return StackCells(*(column[rows] for column in self[:-1]), self.exact)  # type: ignore[arg-type, call-arg]

    def stacks_in(self, pieces: Intervals) -> NDArray[np.int32]:
        """Return the stack of each cell, given idle time that ends with launches.

        A stack that may have been taken at the launch gives way to the stack before it, if that was taken in the same
        piece.
        """
        if self.exact or len(pieces.start) == 0:
            return self.stack
        piece = np.maximum(np.searchsorted(pieces.start, self.moment, side="right") - 1, 0)
        start, end = pieces.start[piece], pieces.end[piece]
        at_launch = (self.since >= start) & (self.moment < end) & (self.seen >= end)
        return np.where(at_launch, self.before, self.stack)

    def where(self, chosen: NDArray[np.bool_]) -> Intervals:
        """Return the union of some cells."""
        return union(self.start[chosen], self.end[chosen], ordered=True)


@dataclass(frozen=True, slots=True)
class StackIndex:
    """The cells of each thread. Nothing is computed for threads that are not asked for."""

    trace: Trace
    _known: dict[tuple[int, bool], StackCells | None] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Return whether the capture has no stacks."""
        return self.trace.evidence.samples.is_empty()

    def sources(self, thread: int) -> Iterator[StackCells]:
        """Yield the cells that tell where a thread was, the best first.

        They are its Python stacks, those of the main thread of its process, which waits for it (PyTorch's autograd),
        and its native stacks.
        """
        candidates = ((thread, True), (self._main_thread(thread), True), (thread, False))
        for row, python in dict.fromkeys(candidates):
            cells = None if row is None else self.cells(row, python)
            if cells is not None:
                yield cells

    def cells(self, thread: int, python: bool) -> StackCells | None:
        """Return the cells of a thread's Python or native stacks; None if it has none."""
        key = thread, python
        if key not in self._known:
            is_python = pl.col("python_thread").is_not_null()
            own = self.trace.evidence.samples.filter(
                (pl.col("thread") == thread) & (is_python if python else ~is_python)
            )
            self._known[key] = None if own.is_empty() else _cells(own)
        return self._known[key]

    def _main_thread(self, thread: int) -> int | None:
        """Return the thread of the same process with the most Python stacks."""
        processes = self.trace.threads["process"]
        same = pl.Series(np.flatnonzero((processes == processes[thread]).to_numpy()), dtype=pl.Int16)
        samples = self.trace.evidence.samples
        own = samples.filter(pl.col("python_thread").is_not_null() & pl.col("thread").is_in(same.implode()))
        return None if own.is_empty() else int(own["thread"].value_counts(sort=True)["thread"][0])


def _cells(samples: pl.DataFrame) -> StackCells:
    start, end = samples["start"].to_numpy(), samples["end"].to_numpy()
    stack, holds = samples["stack"].to_numpy(), samples["holds_gil"].fill_null(False).to_numpy()
    if (end > start).any():
        return StackCells(start, end, stack, start, holds, start, stack, start, exact=True)
    apart = np.diff(start)
    period = int(np.median(apart)) if len(apart) else 0
    middle = start[:-1] + apart // 2
    first, last = start - period, start + period
    np.maximum(first[1:], middle, out=first[1:])
    np.minimum(last[:-1], middle, out=last[:-1])
    begins = np.append(True, (stack[1:] != stack[:-1]) | (holds[1:] != holds[:-1]))
    run = np.cumsum(begins) - 1  # of equal samples
    run_start = np.flatnonzero(begins)
    run_end = np.append(run_start[1:], len(start)) - 1
    seen = np.where(holds & (run > 0), start[run_end[run]] + period, intervals.BEFORE_ALL)
    before = np.maximum(run_start[run] - 1, 0)
    return StackCells(first, last, stack, start, holds, seen, stack[before], start[before], exact=False)


def compiling_stacks(trace: Trace) -> NDArray[np.bool_]:
    """Return for each stack whether it compiles: a frame belongs to a compiler. One more entry stands for no stack."""
    evidence = trace.evidence
    compiles = evidence.frames["file"].str.contains(COMPILERS).to_numpy()
    return inherited(evidence.stacks, compiles[evidence.stacks["frame"].to_numpy()])


def inherited(stacks: pl.DataFrame, own: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether a stack or any of its callers has a property. One more entry, false, stands for no stack."""
    parent = stacks["parent"].to_numpy()
    has = np.append(own, False)
    above = parent
    while (above >= 0).any():
        has[:-1] |= has[above]
        above = np.where(above >= 0, parent[above], -1)
    return has
