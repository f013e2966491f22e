"""Changes to communication: overlap it, and train on several GPUs of a host (docs/whatif.md "The changes").

Several GPUs are predicted only on request, because the capture holds neither the other GPUs nor the size of the
gradients. The all-reduces run one after the other on a separate stream.
"""

from __future__ import annotations

import math

import numpy as np

from traceview.intervals import Times, covered_length, union
from traceview.model.units import size
from traceview.replay.changes.base import COMMUNICATION, COMPUTE, GraphChange, backward_passes, without_other_waits
from traceview.replay.constants import BUCKET_BYTES, DEVICE_RATE, REDUCE_CALL, REDUCE_SLOW, reduce_rate
from traceview.replay.graph import EVENT, REDUCE, RUN, Codes, DependencyGraph, Mask, replay


def overlap_communication(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph in which other work does not wait for communication."""
    ops, edges = graph.operations, graph.edges
    is_communication = ops.code == COMMUNICATION
    if not is_communication.any():
        return "no communication"
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
    return graph.with_edges(
        kept.plus(graph.ends(before[known]), graph.starts(after[known]), graph.facts.kernel_gap, EVENT)
    )


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
        last = {index: passes[-1] for index in range(graph.last) if (passes := backward_passes(graph, index))}
        if not last:
            return "no backward pass is recognised: no second thread launches, and no range is named after it"
        took = _all_reduce_times(graph, count, gradients)
        ready = {index: _bucket_ends(graph, rows, len(took)) for index, rows in last.items()}
        fill = int(gradients / len(took) / DEVICE_RATE)
        waiting = _with_waits(graph, ready, took)
        return _with_contention(_with_bucket_copies(waiting, ready, fill), ready, took)

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


def _bucket_ends(graph: DependencyGraph, rows: Codes, buckets: int) -> Codes:
    """Return the kernel that completes each bucket. Gradients come evenly over the backward pass."""
    done = np.cumsum(graph.operations.end[rows] - graph.operations.start[rows])
    shares = done[-1] * (np.arange(buckets) + 1) / buckets
    kernels: Codes = rows[np.minimum(np.searchsorted(done, shares), len(rows) - 1)]
    return kernels


def _with_waits(graph: DependencyGraph, ready: dict[int, Codes], took: Times) -> DependencyGraph:
    """Make the work after the backward pass wait for the all-reduces: after bucket k, for k and all later ones."""
    ops, edges = graph.operations, graph.edges
    left = np.cumsum(took[::-1])[::-1]
    kernels = np.flatnonzero((ops.code == COMPUTE) & (ops.call >= 0))
    kernels = kernels[np.argsort(ops.call[kernels], kind="stable")]
    for ends in ready.values():
        at = int(np.searchsorted(ops.call[kernels], ops.call[ends[-1]], side="right"))
        if at < len(kernels):
            after = np.repeat(kernels[at], len(ends))
            edges = edges.plus(graph.ends(ends), graph.starts(after), left, REDUCE)
    return graph.with_edges(edges)


def _with_bucket_copies(graph: DependencyGraph, ready: dict[int, Codes], fill: int) -> DependencyGraph:
    """Lengthen the kernel that completes a bucket by the copy of the gradients into the bucket."""
    added = np.zeros(len(graph.operations.row), np.int64)
    for ends in ready.values():
        np.add.at(added, ends, fill)
    weight = graph.edges.weight.copy()
    run = np.flatnonzero(graph.edges.kind == RUN)
    weight[run] += added[graph.operations_at(graph.edges.target[run])]
    return graph.with_weight(weight)


def _with_contention(graph: DependencyGraph, ready: dict[int, Codes], took: Times) -> DependencyGraph:
    """Lengthen the kernels that run during all-reduces."""
    ops, time = graph.operations, replay(graph).time
    rows = np.arange(len(ops.row))
    begin = []
    for ends in ready.values():
        # Bucket k begins when it is complete and the buckets before it are done.
        before = np.cumsum(took) - took
        begin.append(np.maximum.accumulate(time[graph.ends(ends)] - before) + before)
    starts = np.concatenate(begin)
    busy = union(starts, starts + np.tile(took, len(begin)))
    beside = covered_length(busy, time[graph.starts(rows)], time[graph.ends(rows)])
    weight = graph.edges.weight.copy()
    run = graph.operation_edges(RUN, ops.code == COMPUTE)
    operation = graph.operations_at(graph.edges.target[run])
    weight[run] += (beside[operation] * REDUCE_SLOW).astype(np.int64)
    return graph.with_weight(weight)
