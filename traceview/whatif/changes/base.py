"""A change: a function from a graph to a changed graph, or to the reason why the change does not apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from traceview.frozen import frozen
from traceview.model.program import Program
from traceview.model.trace import CLASSES
from traceview.model.trace import KINDS as COPIES
from traceview.whatif.constants import Constants
from traceview.whatif.graph import DependencyGraph, Mask

Apply = Callable[[DependencyGraph, Constants], "DependencyGraph | str"]
H2D, D2H = COPIES.index("h2d"), COPIES.index("d2h")
COMPUTE, COMMUNICATION, COPY, MEMSET = (CLASSES.index(name) for name in CLASSES)
LARGE_COPY = 1_000_000  # bytes: a larger copy is a batch, not a scalar or an index


@frozen
class GraphChange:
    """`rests_on` names the conditions of the prediction; `times` is the number of batches of an iteration.

    `in_pytorch` replaces `rests_on` for PyTorch programs. `training_only` limits the change to PyTorch programs that
    are not known to be inference.
    """

    name: str
    title: str
    rests_on: str
    apply: Apply
    times: int = 1
    in_pytorch: str = ""
    training_only: bool = False
    alternatives: tuple[str, ...] = ()

    def for_program(self, program: Program) -> GraphChange | None:
        """Return the change in the words of a kind of program; None if it makes no sense there."""
        pytorch = program.kind == "pytorch"
        if self.training_only and not (pytorch and program.training is not False):
            return None
        return replace(self, rests_on=self.in_pytorch) if pytorch and self.in_pytorch else self


def launching_calls(graph: DependencyGraph, operations: Mask) -> Mask:
    """Return the mask of the calls that launch any of the operations."""
    mask = np.zeros(len(graph.calls.row), np.bool_)
    calls = graph.operations.call[operations]
    mask[calls[calls >= 0]] = True
    return mask
