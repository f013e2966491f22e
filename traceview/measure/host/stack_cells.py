"""The time that each stack stands for: its own, if it is known exactly, else the time nearest to the sample."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Times, index_ranges, union
from traceview.model.stacks import HostEvidence
from traceview.model.trace import Trace

# Kinds of stacks: of Python; of system and CUDA calls, for as long as they last; of the CPU sampler.
PYTHON, CALLS, SAMPLES = "python", "calls", "samples"
HOLE_PERIODS, MAX_HOLE = 2, 1_000_000_000  # length of missing samples: above two periods, up to a second
USUALLY_APART = 0.1  # quantile of the time between CPU samples that is their period
FEW = 8  # search cells near pieces if there are this many times more cells
# Files and modules that run only while code is compiled; compiled code runs below other files of these packages.
COMPILERS = (
    r"^torch/_dynamo/(?:convert_frame|symbolic_convert)\.py|^torch/_inductor/(?:graph|scheduler|codegen/.*)\.py|"
    r"^triton/compiler/code_generator\.py|^triton/backends/.*compiler\.py|^jax/_src/(?:compiler|interpreters/mlir)\.py|"
    r"^lib(?:nvrtc|nvJitLink|nvidia-ptxjitcompiler|nvvm|LLVM)"
)


class StackCells(NamedTuple):
    """Disjoint times in order, each with its stack (row of HostEvidence.stacks, -1 if unknown).

    nsys takes the stack of a Python thread when it gets the interpreter lock. While a thread holds the lock, nsys
    waits, and then writes the stack that it sees for each moment that it missed, or for none. The thread gives the lock
    up after Python's switch interval, wherever it is, or in a call that waits or launches. So a launch may come first.

    Attributes:
        moment: When the sample was due.
        holds_gil: Whether the thread held the interpreter lock then.
        seen: The latest moment at which the stack of such a sample was taken, and one period, because an op of PyTorch
            gives up the lock shortly before it launches; before all times for other samples.
        before: The stack before the missed time, and `since` when it was taken.
        after: The stack after the missed time: its own, or the next one if samples are missing (then `stack` is -1).
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
    after: NDArray[np.int32]
    exact: bool

    def near(self, pieces: Intervals) -> StackCells:
        """Return the cells that may overlap the members of a union."""
        if len(pieces.start) * FEW > len(self.start):
            return self
        first = np.searchsorted(self.end, pieces.start, side="right")
        count = np.maximum(np.searchsorted(self.start, pieces.end, side="left") - first, 0)
        rows = index_ranges(first, count)  # in order; a cell may overlap several members
        return self.select(rows[np.flatnonzero(np.diff(rows, prepend=-1))])

    def select(self, rows: Times) -> StackCells:
        """Return some of the cells."""
        return StackCells(*(column[rows] for column in self[:-1]), self.exact)  # type: ignore[arg-type, call-arg]

    def stacks_in(self, pieces: Intervals) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the stack of each cell and -1, given idle time that ends with launches.

        A stack that may have been taken at the launch gives way to the stack before it. If that was taken in the same
        piece, it is the cell's. Else the thread ran unseen from the one stack to the other: both are returned.
        """
        known = np.full(len(self.stack), -1, np.int32)
        if self.exact or len(pieces.start) == 0:
            return self.stack, known
        piece = np.maximum(np.searchsorted(pieces.start, self.moment, side="right") - 1, 0)
        start, end = pieces.start[piece], pieces.end[piece]
        late = (self.moment >= start) & (self.moment < end) & (self.seen >= end)
        unseen = (late & (self.since < start)) | ((self.stack < 0) & (self.after >= 0))
        late &= self.since >= start
        return np.where(late | unseen, self.before, self.stack), np.where(unseen, self.after, known)

    @property
    def all(self) -> Intervals:
        """The union of all cells."""
        return union(self.start, self.end, ordered=True)

    def where(self, chosen: NDArray[np.bool_]) -> Intervals:
        """Return the union of some cells."""
        return union(self.start[chosen], self.end[chosen], ordered=True)


class StackIndex:
    """The cells of each thread, and what is true of each stack. Each is computed when it is first asked for."""

    def __init__(self, trace: Trace) -> None:
        self.evidence: HostEvidence = trace.evidence
        self._process = trace.threads["process"].to_list()
        self._is_main = (trace.threads["process"] == trace.threads["tid"]).to_list()
        self._cells: dict[tuple[int, str], StackCells | None] = {}

    @property
    def is_empty(self) -> bool:
        """Return whether the capture has no stacks."""
        return self.evidence.samples.is_empty()

    def sources(self, thread: int) -> Iterator[StackCells]:
        """Yield the cells that show where a thread was, the best source first.

        They are its Python stacks, those of the main thread of its process, which waits for it (PyTorch's autograd),
        the stacks of its system and CUDA calls, and its CPU samples.
        """
        main = self._main_threads.get(self._process[thread], thread)
        for row, kind in dict.fromkeys(((thread, PYTHON), (main, PYTHON), (thread, CALLS), (thread, SAMPLES))):
            cells = self.cells(row, kind)
            if cells is not None:
                yield cells

    def cells(self, thread: int, kind: str) -> StackCells | None:
        """Return the cells of a thread's stacks of one kind; None if it has none."""
        key = thread, kind
        if key not in self._cells:
            own = self._parts.get(key)
            self._cells[key] = None if own is None else self._cells_of(own, thread, kind)
        return self._cells[key]

    def _cells_of(self, samples: pl.DataFrame, thread: int, kind: str) -> StackCells:
        if kind == CALLS:
            return _calls(samples)
        cells = sampled_cells(samples)
        return self._on_cpu(cells, thread) if kind == SAMPLES else cells

    def _on_cpu(self, cells: StackCells, thread: int) -> StackCells:
        """Return the cells of CPU samples without the time off the CPU, in which the thread can be anywhere."""
        events = self.evidence.events.filter((pl.col("thread") == thread) & (pl.col("state") == "off_cpu"))
        off = union(events["start"].to_numpy(), events["end"].to_numpy())
        before = np.append(intervals.BEFORE_ALL, off.end)[np.searchsorted(off.end, cells.moment, side="right")]
        after = np.append(off.start, -intervals.BEFORE_ALL)[np.searchsorted(off.start, cells.moment)]
        return cells._replace(start=np.maximum(cells.start, before), end=np.minimum(cells.end, after))

    def stacks_in(self, cells: StackCells, pieces: Intervals) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the stack of each cell, and the next one if the thread ran unseen between two lines, else -1."""
        stack, until = cells.stacks_in(pieces)
        own = np.append(self.own_frames, -1)  # the last entry stands for no stack
        same = (until >= 0) & (own[until] == own[stack])
        return np.where(same, until, stack), np.where(same, np.int32(-1), until)

    @cached_property
    def own_nodes(self) -> NDArray[np.int64]:
        """HostEvidence.own_nodes."""
        return self.evidence.own_nodes()

    @cached_property
    def own_frames(self) -> NDArray[np.int64]:
        """The frame of each stack's own node."""
        frames: NDArray[np.int64] = self.evidence.stacks["frame"].to_numpy()[self.own_nodes].astype(np.int64)
        return frames

    @cached_property
    def compiles(self) -> NDArray[np.bool_]:
        """Whether each stack has a frame of a compiler. One more entry, false, stands for no stack."""
        own = self.evidence.frames["file"].str.contains(COMPILERS).to_numpy()
        return inherited(self.evidence.stacks, own[self.evidence.stacks["frame"].to_numpy()])

    @cached_property
    def _parts(self) -> dict[tuple[int, str], pl.DataFrame]:
        """The samples of each thread and kind."""
        known = self.evidence.samples.filter(pl.col("thread").is_not_null())
        native = pl.when(pl.col("end") > pl.col("start")).then(pl.lit(CALLS)).otherwise(pl.lit(SAMPLES))
        kind = pl.when(pl.col("python_thread").is_not_null()).then(pl.lit(PYTHON)).otherwise(native).alias("kind")
        tables = known.with_columns(kind).partition_by("thread", "kind", as_dict=True)
        return {(int(thread), str(kind)): table for (thread, kind), table in tables.items()}

    @cached_property
    def _main_threads(self) -> dict[int, int]:
        """The thread of each process whose Python stacks count for others: its main thread, else that with the most."""
        python = [(row, len(table)) for (row, kind), table in self._parts.items() if kind == PYTHON]
        python.sort(key=lambda item: (self._is_main[item[0]], item[1], -item[0]))  # the last of a process counts
        return {self._process[row]: row for row, _ in python}


def _calls(calls: pl.DataFrame) -> StackCells:
    """Return the cells of calls with a stack. Time in a call inside another belongs to the outer one."""
    start, end = calls["start"].to_numpy(), calls["end"].to_numpy()
    own = intervals.own_lengths(start, end)
    rows = np.flatnonzero(own)
    return _exact_cells((end - own)[rows], end[rows], calls["stack"].to_numpy()[rows], np.zeros(len(rows), np.bool_))


def _exact_cells(start: Times, end: Times, stack: NDArray[np.int32], holds: NDArray[np.bool_]) -> StackCells:
    return StackCells(start, end, stack, start, holds, start, stack, start, stack, exact=True)


def sampled_cells(samples: pl.DataFrame) -> StackCells:
    """Return the cells of the samples, or of the exactly known stacks, of one thread, in the order of time."""
    start, end = samples["start"].to_numpy(), samples["end"].to_numpy()
    stack, holds = samples["stack"].to_numpy(), samples["holds_gil"].fill_null(False).to_numpy()
    if (end > start).any():
        return _exact_cells(start, end, stack, holds)
    apart = np.diff(start)
    # A thread that sleeps often has few CPU samples one period apart.
    is_native = samples["holds_gil"].null_count() > 0
    period = int(np.quantile(apart, USUALLY_APART if is_native else 0.5)) if len(apart) else 0
    middle = start[:-1] + apart // 2
    first, last = start - period, start + period
    np.maximum(first[1:], middle, out=first[1:])
    np.minimum(last[:-1], middle, out=last[:-1])
    begins = np.append(True, (stack[1:] != stack[:-1]) | (holds[1:] != holds[:-1]))
    run = np.cumsum(begins) - 1  # number of the run of equal samples
    run_start = np.flatnonzero(begins)
    run_end = np.append(run_start[1:], len(start)) - 1
    next_start = np.append(start[1:], start[-1] + period)
    seen = np.where(holds & (run > 0), next_start[run_end[run]] + period, intervals.BEFORE_ALL)
    before = np.maximum(run_start[run] - 1, 0)
    cells = StackCells(first, last, stack, start, holds, seen, stack[before], start[before], stack, exact=False)
    holes = np.flatnonzero((apart > HOLE_PERIODS * period) & (apart <= MAX_HOLE))
    return cells if is_native or len(holes) == 0 else _with_holes(cells, holes, period)


def _with_holes(cells: StackCells, at: Times, period: int) -> StackCells:
    """Return cells with the missing time after the cells `at`, in which the thread held the interpreter lock.

    nsys waited for the lock since the last sample, which therefore has the stack of the end of the missing time. The
    next sample comes at once when nsys gets the lock, so that no time before it belongs to it.
    """
    start, end = cells.end[at], cells.moment[at + 1]
    cells.start[at + 1] = end
    waited = ~cells.holds_gil[at] & (at > 0)
    for column, values in (
        (cells.seen, end + period),
        (cells.before, np.where(waited, cells.stack[at - 1], cells.before[at])),
        (cells.since, np.where(waited, cells.moment[at - 1], cells.since[at])),
    ):
        column[at] = values
    unknown, holds = np.full(len(at), -1, np.int32), np.ones(len(at), np.bool_)
    holes = (start, end, unknown, start, holds, end + period, cells.before[at], cells.since[at], cells.stack[at])
    pairs = zip(cells[:-1], holes, strict=True)
    return StackCells(*(np.insert(column, at + 1, added) for column, added in pairs), exact=False)  # type: ignore


def inherited(stacks: pl.DataFrame, own: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether a stack or any of its callers has a property. One more entry, false, stands for no stack."""
    parent = stacks["parent"].to_numpy()
    has = np.append(own, False)
    above = parent
    while (above >= 0).any():
        has[:-1] |= has[above]
        above = np.where(above >= 0, parent[above], -1)
    return has
