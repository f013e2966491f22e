"""A change: a function from a graph to a changed graph, or to the reason why the change does not apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from traceview.intervals import Times, runs
from traceview.model.findings import MIN_GAIN
from traceview.model.program import Program
from traceview.model.trace import CLASSES
from traceview.model.trace import KINDS as COPIES
from traceview.pricing.texts import fits, is_lacking
from traceview.replay.graph import CALL, GAP, LAUNCH, QUEUE, STREAM, Codes, DependencyGraph, Mask

Apply = Callable[[DependencyGraph], "DependencyGraph | str"]
H2D, D2H = COPIES.index("h2d"), COPIES.index("d2h")
COMPUTE, COMMUNICATION, COPY, MEMSET = (CLASSES.index(name) for name in CLASSES)
LARGE_COPY = 1_000_000  # bytes: a larger copy is a batch, not a scalar or an index
# The host pauses (it reads data, logs or sleeps) if it takes this many times the median between two calls, in bounds.
PAUSE_FACTOR, MIN_PAUSE, MAX_PAUSE = 20, 500_000, 2_000_000  # ns
MIN_BACKWARD_KERNELS = 10  # a shorter pass belongs to the pass around it


EFFORTS = ("one line", "a few lines", "a rewrite")


def gain_rank(share: float, effort: str) -> tuple[float, int, float]:
    """Return the key of an order by the share that changes gain.

    Changes that gain alike, because captures of a program differ by as much, are in the order of their effort.
    """
    return -round(share / MIN_GAIN), EFFORTS.index(effort), -share


class GraphChange(NamedTuple):
    """`rests_on` names the conditions of the prediction; `times` is the number of batches of an iteration.

    `in_pytorch` replaces `rests_on` for PyTorch programs that have what it speaks of. `programs` are the kinds of
    programs (KINDS of pricing/texts.py) that the change fits; none for all. `repeats` says that it needs iterations
    that repeat, and `effort` (EFFORTS) what it takes to make. `most` returns the ns
    of an iteration that the change alone can save at most.
    """

    name: str
    title: str
    rests_on: str
    apply: Apply
    times: int = 1
    in_pytorch: str = ""
    alternatives: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    repeats: bool = False
    effort: str = "a rewrite"
    most: Callable[[DependencyGraph], int] | None = None

    def for_program(self, program: Program, is_whole_run: bool = False) -> GraphChange | None:
        """Return the change in the words of a kind of program; None if it makes no sense there."""
        sensible = fits(self.programs, program) and not (self.repeats and is_whole_run)
        return self.in_words_of(program) if sensible else None

    def in_words_of(self, program: Program) -> GraphChange:
        """Return the change in the words of a kind of program."""
        fitting = program.kind == "pytorch" and self.in_pytorch and not is_lacking(self.in_pytorch, program)
        return self._replace(rests_on=self.in_pytorch) if fitting else self


def without_other_waits(graph: DependencyGraph, waits: Mask, operations: Mask) -> Mask:
    """Return the mask of edges `waits` without those to work that waits for something else than these operations.

    Work that starts later after an operation than this took waits for something that the graph does not have, such as
    another kernel that fills the GPU, or the loading of its code.
    """
    ops, edges = graph.operations, graph.edges
    source = np.where(waits, graph.operations_at(edges.source), 0)
    late: Mask = edges.weight > np.maximum(ops.end[source] - ops.start[source], MIN_PAUSE)
    return waits & ~(operations[source] & late)


def launching_calls(graph: DependencyGraph, operations: Mask) -> Mask:
    """Return the mask of the calls that launch any of the operations."""
    mask = np.zeros(len(graph.calls.row), np.bool_)
    calls = graph.operations.call[operations]
    mask[calls[calls >= 0]] = True
    return mask


def longest_launching_gap(graph: DependencyGraph) -> int:
    """Return the longest time between two calls that counts as launching code."""
    between = graph.edges.weight[graph.edges.kind == GAP]
    usual = int(np.median(between)) if len(between) else 0
    return min(max(MIN_PAUSE, PAUSE_FACTOR * usual), MAX_PAUSE)


def without_launches(graph: DependencyGraph, weight: Times, gone: Mask) -> DependencyGraph:
    """Return the graph with these weights, but the operations `gone` cost no launch and no gap before them.

    A pause before a launch stays.
    """
    weight[graph.operation_edges(STREAM, gone)] = 0
    weight[graph.operation_edges(LAUNCH, gone)] = 0
    calls = launching_calls(graph, gone) & ~launching_calls(graph, ~gone)
    weight[graph.call_edges(CALL, calls)] = 0
    gap = graph.call_edges(GAP, calls)
    weight[gap] = np.where(weight[gap] > longest_launching_gap(graph), weight[gap], 0)
    return graph.with_edges(graph.edges.with_weight(weight).keep(~graph.call_edges(QUEUE, calls)))


def backward_passes(graph: DependencyGraph, iteration: int) -> list[Codes]:
    """Return the kernels of each backward pass of an iteration, in launch order."""
    ops = graph.operations
    rows = np.flatnonzero((ops.iteration == iteration) & (ops.code == COMPUTE) & (ops.call >= 0))
    rows = rows[np.argsort(ops.call[rows], kind="stable")]
    back = graph.calls.backward[ops.call[rows]]
    begin, end = runs(back)
    if not len(begin):
        return []
    apart = begin[1:] - end[:-1] >= MIN_BACKWARD_KERNELS
    first, last = begin[np.concatenate([[True], apart])], end[np.concatenate([apart, [True]])]
    passes = [rows[start:stop][back[start:stop]] for start, stop in zip(first.tolist(), last.tolist(), strict=True)]
    return [each for each in passes if len(each) >= MIN_BACKWARD_KERNELS]
