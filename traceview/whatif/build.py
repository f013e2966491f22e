"""Build the dependency graph of the selected iterations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traceview.intervals import clip, length, union
from traceview.model.trace import Trace
from traceview.whatif.gpu_edges import gpu_edges, machine_facts, operations_of
from traceview.whatif.graph import DependencyGraph, Edges
from traceview.whatif.host_edges import calls_of, host_edges, queue_edges
from traceview.whatif.select import Selection

EARLIEST = np.iinfo(np.int64).min // 4


def build(trace: Trace, selection: Selection) -> DependencyGraph:
    """Return the graph of the selected iterations, with the operations still running when they begin."""
    begin, end = int(selection.edges[selection.begin]), int(selection.edges[selection.last])
    calls = calls_of(trace, selection, begin, end)
    ops = operations_of(trace, selection, calls, begin)
    facts = replace(machine_facts(trace, calls, ops), overhead=_overhead_share(trace, begin, end))
    host, first_calls = host_edges(trace, calls, ops)
    gpu, first_operations = gpu_edges(trace, calls, ops, facts)
    base = 2 * len(calls.row)
    release = np.full(base + 2 * len(ops.row), EARLIEST, np.int64)
    release[2 * first_calls] = calls.start[first_calls]
    release[base + 2 * first_operations] = ops.start[first_operations]
    parts = ((part.source, part.target, part.weight, part.kind) for part in (host, gpu))
    pairs = zip(*parts, strict=True)
    edges = queue_edges(calls, ops, Edges(*(np.concatenate(pair).astype(np.int64) for pair in pairs)))
    return DependencyGraph(calls, ops, edges, release, selection.first, selection.last, facts)


def _overhead_share(trace: Trace, begin: int, end: int) -> float:
    overhead = union(trace.overhead["start"].to_numpy(), trace.overhead["end"].to_numpy())
    return length(clip(overhead, begin, end)) / max(end - begin, 1)
