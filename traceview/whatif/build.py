"""From an analysis to the graph of its median iterations."""

from __future__ import annotations

import numpy as np

from traceview.model.trace import Trace
from traceview.whatif.gpu_edges import facts_of, gpu_edges, operations_of
from traceview.whatif.graph import Edges, Graph
from traceview.whatif.host_edges import calls_of, host_edges
from traceview.whatif.queue_edges import queue_edges
from traceview.whatif.select import Selection

EARLIEST = np.iinfo(np.int64).min // 4


def build(trace: Trace, at: Selection) -> Graph:
    """Return the graph of the chosen iterations, with what still ran on the GPU when they began."""
    begin, end = int(at.edges[at.begin]), int(at.edges[at.last])
    calls = calls_of(trace, at, begin, end)
    of = operations_of(trace, at, calls, begin)
    facts = facts_of(trace, calls, of)
    host, first_calls = host_edges(trace, calls, of)
    gpu, first_operations = gpu_edges(trace, calls, of, facts)
    base = 2 * len(calls.row)
    release = np.full(base + 2 * len(of.row), EARLIEST, np.int64)
    release[2 * first_calls] = calls.start[first_calls]
    release[base + 2 * first_operations] = of.start[first_operations]
    parts = ((one.source, one.target, one.weight, one.kind) for one in (host, gpu))
    pairs = zip(*parts, strict=True)
    edges = queue_edges(calls, of, Edges(*(np.concatenate(pair).astype(np.int64) for pair in pairs)))
    return Graph(calls, of, edges, release, at.first, at.last, facts)
