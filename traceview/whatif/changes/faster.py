"""Kernels of one name, some times as fast."""

from __future__ import annotations

import numpy as np

from traceview.whatif.changes.base import COMMUNICATION, COMPUTE, Change
from traceview.whatif.constants import Constants
from traceview.whatif.graph import RUN, Graph, Mask


def faster(code: int, name: str, times: float) -> Change:
    """Return the change that makes every kernel of `name`, `code` in Operations.name, that many times as fast."""

    def apply(graph: Graph, constants: Constants) -> Graph | str:
        chosen: Mask = (graph.operations.name == code) & np.isin(graph.operations.code, [COMPUTE, COMMUNICATION])
        if not chosen.any():
            return f"no kernel called {name}"
        weight = graph.edges.weight.copy()
        run = graph.of_operations(RUN, chosen)
        weight[run] = (weight[run] / times).astype(np.int64)
        return graph.with_edges(graph.edges.weighing(weight))

    return Change(f"faster:{name}={times:g}", f"{times:g} times as fast: {name}", "a faster kernel", apply)
