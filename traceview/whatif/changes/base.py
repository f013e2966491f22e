"""A change: a function from a graph to a changed graph, or to the reason why the change does not apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from traceview.model.trace import CLASSES
from traceview.model.trace import KINDS as COPIES
from traceview.whatif.constants import Constants
from traceview.whatif.graph import DependencyGraph, Mask

Apply = Callable[[DependencyGraph, Constants], "DependencyGraph | str"]
H2D = COPIES.index("h2d")
COMPUTE, COMMUNICATION, COPY, MEMSET = (CLASSES.index(name) for name in CLASSES)
LARGE_COPY = 1_000_000  # bytes: a larger copy is a batch, not a scalar or an index


@dataclass(frozen=True, slots=True)
class GraphChange:
    """`rests_on` names the conditions of the prediction; `times` is the number of batches of an iteration."""

    name: str
    title: str
    rests_on: str
    apply: Apply
    times: int = 1


def launching_calls(graph: DependencyGraph, operations: Mask) -> Mask:
    """Return the mask of the calls that launch any of the operations."""
    mask = np.zeros(len(graph.calls.row), np.bool_)
    calls = graph.operations.call[operations]
    mask[calls[calls >= 0]] = True
    return mask
