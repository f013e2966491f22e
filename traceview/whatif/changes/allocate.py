"""Reuse memory instead of allocating and freeing it in each iteration.

Symptom: calls such as cudaMalloc and cudaFree inside iterations. They take time, and cudaFree waits for the GPU. With
the change, they take no time.
"""

from __future__ import annotations

from traceview.whatif.changes.base import GraphChange
from traceview.whatif.constants import Constants
from traceview.whatif.graph import CALL, DependencyGraph


def apply(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
    """Return the graph without the time of memory calls."""
    if not graph.calls.memory.any():
        return "no iteration allocates or frees memory"
    weight = graph.edges.weight.copy()
    weight[graph.call_edges(CALL, graph.calls.memory)] = 0
    return graph.with_weight(weight)


ALLOCATE = GraphChange(
    "allocate",
    "Reuse memory instead of allocating it",
    "buffers that are allocated before the loop and fit all iterations",
    apply,
    in_pytorch="the caching allocator keeps its memory: no empty_cache() in the loop, few shapes, memory to spare",
)
