"""Backward passes, told apart by who launches: autograd's thread, or a range named after the backward pass."""

from __future__ import annotations

import numpy as np

from traceview.whatif.changes.base import COMPUTE
from traceview.whatif.graph import Codes, Graph, Mask

FEWEST = 10  # kernels of a pass: less between two of the other kind is none


def backward(graph: Graph) -> Mask:
    """Return the kernels of backward passes."""
    of = graph.operations
    found = np.zeros(len(of.row), np.bool_)
    launched = (of.call >= 0) & (of.iteration >= 0) & (of.code == COMPUTE)
    found[launched] = graph.calls.backward[of.call[launched]]
    return found


def passes(graph: Graph, iteration: int) -> list[Codes]:
    """Return the backward passes of an iteration, first to last: its kernels, in the order of their launches."""
    of = graph.operations
    rows = np.flatnonzero((of.iteration == iteration) & (of.code == COMPUTE) & (of.call >= 0))
    rows = rows[np.argsort(of.call[rows], kind="stable")]
    back = backward(graph)[rows]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], back.view(np.int8), [0]])))
    begin, end = edges[::2], edges[1::2]
    if not len(begin):
        return []
    apart = begin[1:] - end[:-1] >= FEWEST
    first, last = begin[np.concatenate([[True], apart])], end[np.concatenate([apart, [True]])]
    found = [rows[start:stop][back[start:stop]] for start, stop in zip(first.tolist(), last.tolist(), strict=True)]
    return [one for one in found if len(one) >= FEWEST]
