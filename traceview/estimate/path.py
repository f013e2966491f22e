"""The critical path of the run as it is, on the timeline."""

from __future__ import annotations

import polars as pl

from traceview.estimate.graph import CALL, GAP, QUEUE, WAIT, Graph
from traceview.estimate.replay import Replay, critical, kind_of
from traceview.model import Trace
from traceview.model_whatif import Span


def spans_of(trace: Trace, graph: Graph, of: Replay) -> tuple[Span, ...]:
    """Return the parts of the critical path, first to last; neighbours of one kind and name are one part."""
    names = trace.operations["name"].cast(pl.String)
    calls = trace.api["name"].cast(pl.String)
    found: list[Span] = []
    for edge in reversed(critical(graph, of)):
        source, target = int(graph.edges.source[edge]), int(graph.edges.target[edge])
        start, end = max(int(of.time[source]), of.begin), int(of.time[target])
        if end <= start:
            continue
        if int(graph.edges.kind[edge]) in (GAP, CALL, WAIT, QUEUE):
            name = calls[int(graph.calls.row[target // 2])]
        else:
            name = names[int(graph.operations.row[(target - 2 * len(graph.calls.row)) // 2])]
        span = Span(kind_of(graph, edge), name, start, end)
        last = found[-1] if found else None
        if last and (last.kind, last.name, last.end_ns) == (span.kind, span.name, span.start_ns):
            found[-1] = Span(span.kind, span.name, last.start_ns, span.end_ns)
        else:
            found.append(span)
    return tuple(found)
