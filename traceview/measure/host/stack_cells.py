"""The time that each stack stands for: its own, if it is known exactly, else the time nearest to the sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Intervals, Times, union
from traceview.model.trace import Trace

# Files that run only while code is compiled; compiled code itself runs below other files of these packages.
COMPILERS = (
    r"^torch/_dynamo/(?:convert_frame|symbolic_convert)\.py|^torch/_inductor/(?:graph|scheduler|codegen/.*)\.py|"
    r"^triton/compiler/code_generator\.py|^triton/backends/.*compiler\.py|^jax/_src/(?:compiler|interpreters/mlir)\.py"
)


class LateStacks(NamedTuple):
    """Samples whose stack nsys took after their time.

    nsys waits for the interpreter lock, and writes the stack that it then sees for each moment that it missed. The
    thread gives the lock up after Python's switch interval, wherever it is, or in a call that waits or launches.

    Attributes:
        cell: The cell of each late sample.
        moment: When it was due.
        seen: The latest moment at which its stack was taken.
        before: The stack before the missed time, and `since` when it was taken.
    """

    cell: Times
    moment: Times
    seen: Times
    before: NDArray[np.int32]
    since: Times


class StackCells(NamedTuple):
    """Disjoint times in order, each with its stack (row of HostEvidence.stacks, -1 if unknown)."""

    start: Times
    end: Times
    stack: NDArray[np.int32]
    holds_gil: NDArray[np.bool_]
    late: LateStacks | None
    exact: bool

    def stacks_in(self, pieces: Intervals) -> NDArray[np.int32]:
        """Return the stack of each cell, given idle time that ends with launches.

        A late stack that was taken at the launch gives way to the stack before it, if that was taken in the same piece.
        """
        late = self.late
        if late is None or len(pieces.start) == 0:
            return self.stack
        piece = np.maximum(np.searchsorted(pieces.start, late.moment, side="right") - 1, 0)
        inside = (late.since >= pieces.start[piece]) & (late.moment < pieces.end[piece])
        at_launch = np.flatnonzero(inside & (late.seen >= pieces.end[piece]))
        stack = self.stack.copy()
        stack[late.cell[at_launch]] = late.before[at_launch]
        return stack

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
        return StackCells(start, end, stack, holds, None, exact=True)
    apart = np.diff(start)
    period = int(np.median(apart)) if len(apart) else 0
    middle = start[:-1] + apart // 2
    first, last = start - period, start + period
    np.maximum(first[1:], middle, out=first[1:])
    np.minimum(last[:-1], middle, out=last[:-1])
    return StackCells(first, last, stack, holds, _late_stacks(start, stack, holds, period), exact=False)


def _late_stacks(start: Times, stack: NDArray[np.int32], holds: NDArray[np.bool_], period: int) -> LateStacks | None:
    """Return the samples of threads that held the interpreter lock."""
    begins = np.append(True, (stack[1:] != stack[:-1]) | (holds[1:] != holds[:-1]))
    run = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(start)) - 1
    is_late = holds[first] & (first > 0)
    cell = np.flatnonzero(is_late[run])
    if len(cell) == 0:
        return None
    before = first[run[cell]] - 1
    return LateStacks(cell, start[cell], start[last[run[cell]]] + period, stack[before], start[before])


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
