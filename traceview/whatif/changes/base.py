"""What a change is: a function from a graph to another, or the reason why this run cannot have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from traceview.model.trace import CLASSES
from traceview.model.trace import KINDS as COPIES
from traceview.whatif.constants import Constants
from traceview.whatif.graph import Graph, Mask

Apply = Callable[[Graph, Constants], "Graph | str"]
H2D = COPIES.index("h2d")
COMPUTE, COMMUNICATION, COPY, MEMSET = (CLASSES.index(name) for name in CLASSES)
LARGE = 1_000_000  # bytes: a batch, not a scalar or an index


@dataclass(frozen=True, slots=True)
class Change:
    """`rests_on` says what must be so for the prediction to come true; `times` how many batches an iteration takes."""

    name: str
    title: str
    rests_on: str
    apply: Apply
    times: int = 1


def launching(graph: Graph, operations: Mask) -> Mask:
    """Return the mask of the calls that launch any of the operations."""
    found = np.zeros(len(graph.calls.row), np.bool_)
    calls = graph.operations.call[operations]
    found[calls[calls >= 0]] = True
    return found
