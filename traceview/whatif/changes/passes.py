"""Identify backward passes: launched by autograd's thread, or in a range named after the backward pass."""

from __future__ import annotations

import numpy as np

from traceview.whatif.changes.base import COMPUTE
from traceview.whatif.graph import Codes, DependencyGraph, Mask

MIN_KERNELS = 10  # kernels of a pass; fewer are part of the pass around them


def is_backward(graph: DependencyGraph) -> Mask:
    """Return the mask of kernels in backward passes."""
    ops = graph.operations
    mask = np.zeros(len(ops.row), np.bool_)
    launched = (ops.call >= 0) & (ops.iteration >= 0) & (ops.code == COMPUTE)
    mask[launched] = graph.calls.backward[ops.call[launched]]
    return mask


def backward_passes(graph: DependencyGraph, iteration: int) -> list[Codes]:
    """Return the kernels of each backward pass of an iteration, in launch order."""
    ops = graph.operations
    rows = np.flatnonzero((ops.iteration == iteration) & (ops.code == COMPUTE) & (ops.call >= 0))
    rows = rows[np.argsort(ops.call[rows], kind="stable")]
    back = is_backward(graph)[rows]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], back.view(np.int8), [0]])))
    begin, end = edges[::2], edges[1::2]
    if not len(begin):
        return []
    apart = begin[1:] - end[:-1] >= MIN_KERNELS
    first, last = begin[np.concatenate([[True], apart])], end[np.concatenate([apart, [True]])]
    parts = [rows[start:stop][back[start:stop]] for start, stop in zip(first.tolist(), last.tolist(), strict=True)]
    return [part for part in parts if len(part) >= MIN_KERNELS]
