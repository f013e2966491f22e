"""Data parallel on several GPUs of one host: every GPU takes a batch, and gradients are averaged in buckets.

Asked for, never found: the second GPU is not in the capture, nor is the size of the gradients. With the change
each bucket's all-reduce starts when the backward pass has come that far, one after the other on a stream of
their own; the optimizer waits for the last. Kernels beside an all-reduce share the GPU with it.
"""

from __future__ import annotations

import math

import numpy as np

from traceview.intervals import Times, covered_length, union
from traceview.whatif.changes.base import COMMUNICATION, COMPUTE, Change
from traceview.whatif.changes.passes import passes
from traceview.whatif.constants import BUCKET, DEVICE_RATE, REDUCE_CALL, Constants, reduce_rate
from traceview.whatif.graph import REDUCE, RUN, Codes, Graph
from traceview.whatif.replay import replay


def ranks(count: int, gradients: int) -> Change:
    """Return the change to `count` GPUs of one host that average `gradients` bytes a step."""

    def apply(graph: Graph, constants: Constants) -> Graph | str:
        if (graph.operations.code == COMMUNICATION).any():
            return "this run has several ranks already"
        last = {one: found[-1] for one in range(graph.last) if (found := passes(graph, one))}
        if not last:
            return "no backward pass can be told from the rest: no second thread launches, no range is named so"
        took = _reduced(graph, count, gradients, constants)
        ready = {one: _ready(graph, rows, len(took)) for one, rows in last.items()}
        fill = int(gradients / len(took) / DEVICE_RATE)
        return _beside(_filling(_waiting(graph, ready, took), ready, fill), ready, took, constants)

    size = f"{gradients / 1e6:.0f} MB"
    return Change(
        f"ranks:{count}",
        f"Data parallel on {count} GPUs ({size} of gradients)",
        "GPUs of one host that are linked as this model's are; DistributedDataParallel with buckets of 25 MB; ranks "
        "that arrive together",
        apply,
        times=count,
    )


def _reduced(graph: Graph, count: int, gradients: int, constants: Constants) -> Times:
    """Return the ns of each bucket's all-reduce."""
    buckets = max(1, math.ceil(gradients / BUCKET))
    rate = reduce_rate(graph.facts.gpu) * constants.reduce_rate
    each = gradients / buckets * 2 * (count - 1) / count / rate + REDUCE_CALL
    return np.full(buckets, each).astype(np.int64)


def _ready(graph: Graph, rows: Codes, buckets: int) -> Codes:
    """Return the kernel behind which each bucket is ready: gradients come evenly over the backward pass."""
    done = np.cumsum(graph.operations.end[rows] - graph.operations.start[rows])
    shares = done[-1] * (np.arange(buckets) + 1) / buckets
    found: Codes = rows[np.minimum(np.searchsorted(done, shares), len(rows) - 1)]
    return found


def _waiting(graph: Graph, ready: dict[int, Codes], took: Times) -> Graph:
    """Let what comes after the backward pass wait for the all-reduces: behind bucket k, for k and all later ones."""
    of, edges = graph.operations, graph.edges
    left = np.cumsum(took[::-1])[::-1]
    kernels = np.flatnonzero((of.code == COMPUTE) & (of.call >= 0))
    kernels = kernels[np.argsort(of.call[kernels], kind="stable")]
    for found in ready.values():
        at = int(np.searchsorted(of.call[kernels], of.call[found[-1]], side="right"))
        if at < len(kernels):
            after = np.repeat(kernels[at], len(found))
            edges = edges.plus(graph.ends(found), graph.starts(after), left, REDUCE)
    return graph.with_edges(edges)


def _filling(graph: Graph, ready: dict[int, Codes], fill: int) -> Graph:
    """Lengthen the kernels that end a bucket by the copy of its gradients into it."""
    ends = np.zeros(len(graph.operations.row), np.int64)
    for found in ready.values():
        np.add.at(ends, found, fill)
    weight = graph.edges.weight.copy()
    run = np.flatnonzero(graph.edges.kind == RUN)
    weight[run] += ends[(graph.edges.target[run] - 2 * len(graph.calls.row)) // 2]
    return graph.with_edges(graph.edges.weighing(weight))


def _beside(graph: Graph, ready: dict[int, Codes], took: Times, constants: Constants) -> Graph:
    """Lengthen the kernels that run beside all-reduces."""
    of, time = graph.operations, replay(graph).time
    rows = np.arange(len(of.row))
    begin = []
    for found in ready.values():
        # Bucket k begins when it is ready and those before it are done.
        before = np.cumsum(took) - took
        begin.append(np.maximum.accumulate(time[graph.ends(found)] - before) + before)
    starts = np.concatenate(begin)
    busy = union(starts, starts + np.tile(took, len(begin)))
    beside = covered_length(busy, time[graph.starts(rows)], time[graph.ends(rows)])
    weight = graph.edges.weight.copy()
    run = graph.of_operations(RUN, of.code == COMPUTE)
    operation = (graph.edges.target[run] - 2 * len(graph.calls.row)) // 2
    weight[run] += (beside[operation] * constants.reduce_slow).astype(np.int64)
    return graph.with_edges(graph.edges.weighing(weight))
