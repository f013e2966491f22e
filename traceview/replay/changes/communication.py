"""Changes to communication: overlap it, and train on several GPUs of a host (docs/whatif.md "The changes").

Several GPUs are predicted only on request, because the capture holds neither the other GPUs nor the size of the
gradients. The all-reduces run one after the other on a separate stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from traceview.intervals import Times
from traceview.model.units import size
from traceview.replay.changes.base import COMMUNICATION, COMPUTE, GraphChange, backward_passes, without_other_waits
from traceview.replay.changes.hiding import (
    NO_BACKWARD,
    Reduction,
    even_share_ends,
    first_kernel_after,
    has_change,
    lengthened,
    time_beside_parts,
    with_price,
    with_waits,
)
from traceview.replay.constants import BUCKET_BYTES, DEVICE_RATE, REDUCE_CALL, reduce_rate
from traceview.replay.graph import EVENT, RUN, Codes, DependencyGraph, Mask


def overlap_communication(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph in which other work does not wait for communication.

    Collectives that another change hides stay: that change says how.
    """
    ops, edges = graph.operations, graph.edges
    is_communication = ops.code == COMMUNICATION
    if not is_communication.any():
        return "no communication"
    is_communication &= ~has_change(graph)
    if not is_communication.any():
        return "another change hides the communication"
    base = 2 * len(graph.calls.row)
    source, target = graph.operations_at(edges.source), graph.operations_at(edges.target)
    between = (edges.source >= base) & (edges.target >= base) & (edges.kind != RUN)
    waits = between & is_communication[np.where(between, source, 0)] & ~is_communication[np.where(between, target, 0)]
    waits = without_other_waits(graph, waits, is_communication)
    if not waits.any():
        return "nothing waits for the communication"
    into = between & is_communication[np.where(between, target, 0)]
    latest = _latest_awaited(graph, is_communication, source[into], target[into])
    before, after = latest[source[waits]], target[waits]
    known = before >= 0
    kept = edges.keep(~waits)
    edges = kept.plus(graph.ends(before[known]), graph.starts(after[known]), graph.facts.kernel_gap, EVENT)
    return with_price(graph, graph.with_edges(edges), is_communication)


def _latest_awaited(graph: DependencyGraph, is_communication: Mask, source: Codes, target: Codes) -> Codes:
    """Return the last other work that each communication waits for, directly or indirectly; -1 for none."""
    end = graph.operations.end
    latest = np.full(len(is_communication), -1, np.int64)
    order = np.argsort(graph.operations.start[target], kind="stable")
    # One step for each wait of a communication kernel; an iteration has some tens.
    for before, after in zip(source[order].tolist(), target[order].tolist(), strict=True):
        other = int(latest[before]) if is_communication[before] else before
        if other >= 0 and (latest[after] < 0 or end[other] > end[latest[after]]):
            latest[after] = other
    return latest


def compute_beside(graph: DependencyGraph) -> int:
    """Return the ns of compute of an iteration: communication cannot hide behind more than that."""
    chosen = (graph.operations.code == COMPUTE) & graph.is_counted
    return int(graph.run_times[chosen].sum()) // graph.counted


OVERLAP = GraphChange(
    "overlap",
    "Overlap communication with compute",
    "communication in parts that can start early; ranks that arrive together",
    overlap_communication,
    in_pytorch="buckets small enough to start early; ranks that arrive together",
    effort="a few lines",
    most=compute_beside,
)


def ranks(count: int, gradients: int) -> GraphChange:
    """Return the change to `count` GPUs of a host that average `gradients` bytes in each step."""

    def apply(graph: DependencyGraph) -> DependencyGraph | str:
        if (graph.operations.code == COMMUNICATION).any():
            return "this run has several ranks already"
        took = _all_reduce_times(graph, count, gradients)
        reductions = list(_reductions(graph, took))
        if not reductions:
            return NO_BACKWARD
        waiting = _with_bucket_copies(
            with_waits(graph, reductions), reductions, int(gradients / len(took) / DEVICE_RATE)
        )
        return lengthened(waiting, time_beside_parts(waiting, reductions))

    gradient_size = size(gradients)
    return GraphChange(
        f"ranks:{count}",
        f"Data parallel on {count} GPUs ({gradient_size} of gradients)",
        "the usual link between GPUs of this model; DistributedDataParallel with buckets of 25 MB; ranks that arrive "
        "together",
        apply,
        times=count,
    )


def _all_reduce_times(graph: DependencyGraph, count: int, gradients: int) -> Times:
    """Return the ns of the all-reduce of each bucket."""
    buckets = max(1, math.ceil(gradients / BUCKET_BYTES))
    each = gradients / buckets * 2 * (count - 1) / count / reduce_rate(graph.facts.gpu) + REDUCE_CALL
    return np.full(buckets, each).astype(np.int64)


def _reductions(graph: DependencyGraph, took: Times) -> Iterator[Reduction]:
    """Yield the all-reduces of each iteration, which the first kernel after its backward pass waits for."""
    for index in range(graph.last):
        if passes := backward_passes(graph, index):
            consumer = first_kernel_after(graph, int(graph.operations.call[passes[-1][-1]]))
            if consumer is not None:
                yield Reduction(even_share_ends(graph, passes[-1], len(took)), took, consumer)


def _with_bucket_copies(graph: DependencyGraph, reductions: list[Reduction], fill: int) -> DependencyGraph:
    """Lengthen the kernel that completes a bucket by the copy of the gradients into the bucket."""
    added = np.zeros(len(graph.operations.row), np.int64)
    for each in reductions:
        np.add.at(added, each.ready, fill)
    weight = graph.edges.weight.copy()
    run = np.flatnonzero(graph.edges.kind == RUN)
    weight[run] += added[graph.operations_at(graph.edges.target[run])]
    return graph.with_weight(weight)
