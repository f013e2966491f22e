"""The critical path of the run as it is, on the timeline."""

from __future__ import annotations

import polars as pl

from traceview.model.trace import Trace
from traceview.model.whatif import Span
from traceview.whatif.graph import CALL, GAP, QUEUE, WAIT, Graph
from traceview.whatif.replay import Replay, kind_of, stretches


def spans_of(trace: Trace, graph: Graph, of: Replay) -> tuple[Span, ...]:
    """Return the parts of the critical path, first to last; neighbours of one kind and name are one part."""
    names = trace.operations["name"].gather(graph.operations.row).cast(pl.String)
    calls = trace.api["name"].gather(graph.calls.row).cast(pl.String)
    found: list[Span] = []
    for edge, start, end in stretches(graph, of):
        target = int(graph.edges.target[edge])
        if int(graph.edges.kind[edge]) in (GAP, CALL, WAIT, QUEUE):
            name = calls[target // 2]
        else:
            name = names[(target - 2 * len(graph.calls.row)) // 2]
        span = Span(kind_of(graph, edge), name, start, end)
        last = found[-1] if found else None
        if last and (last.kind, last.name, last.end_ns) == (span.kind, span.name, span.start_ns):
            found[-1] = Span(span.kind, span.name, last.start_ns, span.end_ns)
        else:
            found.append(span)
    return tuple(found)
