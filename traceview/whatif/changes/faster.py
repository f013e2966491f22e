"""Speed up the kernels of one name."""

from __future__ import annotations

import numpy as np

from traceview.whatif.changes.base import COMMUNICATION, COMPUTE, GraphChange
from traceview.whatif.constants import Constants
from traceview.whatif.graph import RUN, DependencyGraph, Mask


def faster(code: int, name: str, times: float) -> GraphChange:
    """Return the change that makes each kernel of `name` (`code` in Operations.name) `times` as fast."""

    def apply(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
        chosen: Mask = (graph.operations.name == code) & np.isin(graph.operations.code, [COMPUTE, COMMUNICATION])
        if not chosen.any():
            return f"no kernel called {name}"
        weight = graph.edges.weight.copy()
        run = graph.operation_edges(RUN, chosen)
        weight[run] = (weight[run] / times).astype(np.int64)
        return graph.with_edges(graph.edges.with_weight(weight))

    return GraphChange(f"faster:{name}={times:g}", f"Kernel {times:g}x faster: {name}", "a faster kernel", apply)
