"""Changes that hide collectives behind compute that does not need them (docs/whatif.md "The changes").

Hidden work is not free: the kernels beside it have fewer SMs. Each change pays that price (`with_price`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Intervals, Times, covered_length, union
from traceview.replay.changes.base import COMMUNICATION, COMPUTE, GraphChange, backward_passes
from traceview.replay.constants import BUCKET_BYTES, REDUCE_SLOW, reduce_rate
from traceview.replay.graph import (
    ENGINE,
    EVENT,
    FAMILIES,
    LAUNCH,
    REDUCE,
    RUN,
    STREAM,
    Codes,
    DependencyGraph,
    Mask,
    replay,
)

GATHER, REDUCTION = FAMILIES.index("gather"), FAMILIES.index("reduction")
NONE = np.zeros(0, np.int64)
NO_BACKWARD = "no backward pass is recognised: no second thread launches, and no range is named after it"


class Reduction(NamedTuple):
    """The sums of an iteration, in parts: part k takes `took[k]` ns after the operation `ready[k]`.

    The parts run one after the other. The operation `consumer` waits for all of them.
    """

    ready: Codes
    took: Times
    consumer: int


def price_shares(graph: DependencyGraph, blocks: float) -> NDArray[np.float64]:
    """Return by which part of the time beside work of so many blocks each operation becomes longer.

    Each block takes an SM. A kernel that fits on the others takes as long as alone. A kernel of several waves loses the
    rate of those SMs. If a kernel of one wave does not fit, its remaining blocks wait until the SMs are free, which
    costs the whole time, unless its blocks share their work, which costs the rate. A capture does not show which, so
    that the part is the mean of both. Without launch shapes, it is that of all-reduces beside a step.
    """
    waves, sms = graph.operations.waves, graph.facts.sms
    shares = np.full(len(waves), REDUCE_SLOW)
    if sms and blocks:
        free = max(1 - blocks / sms, 1 / sms)
        rate = min(1 / free - 1, 1)
        shares = np.where(waves <= free, 0.0, np.where(waves <= 1, (1 + rate) / 2, rate))
        shares[np.isnan(waves)] = REDUCE_SLOW
    return np.where(graph.operations.code == COMPUTE, shares, 0.0)


def with_price(before: DependencyGraph, after: DependencyGraph, hidden: Mask) -> DependencyGraph:
    """Return `after` with longer kernels where the operations `hidden` run beside them, and did not before."""
    rows = np.flatnonzero(hidden)
    was, is_now = (_time_beside_operations(graph, rows) for graph in (before, after))
    return lengthened(after, is_now - was, rows)


def _time_beside_operations(graph: DependencyGraph, rows: Codes) -> Times:
    """Return the ns of each operation beside these operations in the replay of a graph."""
    time = replay(graph).time
    return _time_beside(graph, time, union(time[graph.starts(rows)], time[graph.ends(rows)]))


def _time_beside(graph: DependencyGraph, time: Times, busy: Intervals) -> Times:
    """Return the ns of each operation beside other work; `time` is that of each node."""
    rows = np.arange(len(graph.operations.row))
    return covered_length(busy, time[graph.starts(rows)], time[graph.ends(rows)])


def lengthened(graph: DependencyGraph, beside: Times, hidden: Codes = NONE) -> DependencyGraph:
    """Return the graph with kernels that run beside the operations `hidden` for so many ns more."""
    ops = graph.operations
    ns = ops.end[hidden] - ops.start[hidden]
    blocks = float((ops.blocks[hidden] * ns).sum() / max(int(ns.sum()), 1))
    longer = (np.maximum(beside, 0) * price_shares(graph, blocks)).astype(np.int64)
    weight, run = graph.edges.weight.copy(), np.flatnonzero(graph.edges.kind == RUN)
    weight[run] += longer[graph.operations_at(graph.edges.target[run])]
    return graph.with_weight(weight)


def _mask(graph: DependencyGraph, rows: Codes) -> Mask:
    mask = np.zeros(len(graph.operations.row), np.bool_)
    mask[rows] = True
    return mask


def sums_after_backward(graph: DependencyGraph) -> dict[int, Codes]:
    """Return the sums that are launched after the last backward pass of each iteration that has any."""
    ops, sums = graph.operations, {}
    for index in range(graph.last):
        if passes := backward_passes(graph, index):
            chosen = _is_sum(graph) & (ops.iteration == index) & (ops.call > ops.call[passes[-1]].max())
            if chosen.any():
                sums[index] = np.flatnonzero(chosen)
    return sums


def _is_sum(graph: DependencyGraph) -> Mask:
    ops = graph.operations
    mask: Mask = (ops.family == REDUCTION) & (ops.code == COMMUNICATION) & (ops.call >= 0)
    return mask


def reduce_during_backward(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph in which sums after the backward pass run during it, in buckets, as gradients are ready.

    Gradients come evenly over the backward pass.
    """
    chosen, reductions = sums_after_backward(graph), []
    for index, sums in chosen.items():
        consumer = first_kernel_after(graph, int(graph.operations.call[sums].max()))
        if consumer is not None:
            took = _buckets(graph, sums)
            ready = even_share_ends(graph, backward_passes(graph, index)[-1], len(took))
            reductions.append((sums, Reduction(ready, took, consumer)))
    if not reductions:
        has_passes = any(backward_passes(graph, index) for index in range(graph.last))
        return "no sum of gradients follows the backward pass" if has_passes else NO_BACKWARD
    return _with_reductions(graph, reductions)


def _buckets(graph: DependencyGraph, sums: Codes) -> Times:
    """Return the ns of the buckets into which the messages of an iteration go."""
    total = int((graph.operations.end - graph.operations.start)[sums].sum())
    count = max(math.ceil(total * reduce_rate(graph.facts.gpu) / BUCKET_BYTES), 1)
    return np.full(count, total // count)


def even_share_ends(graph: DependencyGraph, kernels: Codes, count: int) -> Codes:
    """Return the kernels that complete each of `count` equal shares of the time of `kernels`."""
    done = np.cumsum(graph.operations.end[kernels] - graph.operations.start[kernels])
    shares = done[-1] * (np.arange(count) + 1) / count
    ends: Codes = kernels[np.minimum(np.searchsorted(done, shares), len(kernels) - 1)]
    return ends


def first_kernel_after(graph: DependencyGraph, call: int) -> int | None:
    """Return the first kernel that is launched after a call; None if none is."""
    ops = graph.operations
    kernels = np.flatnonzero((ops.code == COMPUTE) & (ops.call > call))
    return int(kernels[np.argmin(ops.call[kernels])]) if len(kernels) else None


def _with_reductions(graph: DependencyGraph, reductions: Sequence[tuple[Codes, Reduction]]) -> DependencyGraph:
    """Return the graph in which these operations take no time, and the parts run in place of them."""
    sums, parts = np.concatenate([rows for rows, _ in reductions]), [each for _, each in reductions]
    weight, chosen = graph.edges.weight.copy(), _mask(graph, sums)
    weight[graph.operation_edges(RUN, chosen) | graph.operation_edges(STREAM, chosen)] = 0
    changed = with_waits(graph.with_weight(weight), parts)
    return lengthened(changed, time_beside_parts(changed, parts), sums)


def with_waits(graph: DependencyGraph, reductions: Sequence[Reduction]) -> DependencyGraph:
    """Return the graph in which consumers wait for the parts: after part k is ready, for k and all later ones."""
    edges = graph.edges
    for each in reductions:
        remaining = np.cumsum(each.took[::-1])[::-1]
        consumers = np.full(len(each.ready), each.consumer)
        edges = edges.plus(graph.ends(each.ready), graph.starts(consumers), remaining, REDUCE)
    return graph.with_edges(edges)


def time_beside_parts(graph: DependencyGraph, reductions: Sequence[Reduction]) -> Times:
    """Return the ns of each operation beside the parts: each runs when it is ready and the parts before it are done."""
    time, starts = replay(graph).time, []
    for each in reductions:
        before = np.cumsum(each.took) - each.took
        starts.append(np.maximum.accumulate(time[graph.ends(each.ready)] - before) + before)
    start = np.concatenate(starts)
    end = start + np.concatenate([each.took for each in reductions])
    return _time_beside(graph, time, union(start, end))


REORDER = GraphChange(
    "reorder",
    "Sum gradients during the backward pass, in buckets",
    "gradients that are ready evenly over the backward pass; buckets of 25 MB; ranks that arrive together",
    reduce_during_backward,
    in_pytorch="DistributedDataParallel, or a hook for each gradient; buckets of 25 MB; ranks that arrive together",
    programs=("training",),
    effort="a few lines",
)


def sums_on_streams_of_kernels(graph: DependencyGraph) -> dict[int, Codes]:
    """Return the sums that run on a stream of kernels during the backward passes of each iteration that has any."""
    ops, sums = graph.operations, {}
    on_kernels = _is_sum(graph) & np.isin(ops.stream, np.unique(ops.stream[ops.code == COMPUTE]))
    for index in range(graph.last):
        if passes := backward_passes(graph, index):
            calls = ops.call[np.concatenate(passes)]
            chosen = on_kernels & (ops.call > calls.min()) & (ops.call < calls.max())
            if chosen.any():
                sums[index] = np.flatnonzero(chosen)
    return sums


def sum_on_another_stream(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph in which sums on the stream of the backward pass run beside it; the optimizer waits for all."""
    ops, reductions = graph.operations, []
    before = work_before(graph, STREAM)
    for index, sums in sums_on_streams_of_kernels(graph).items():
        consumer = first_kernel_after(graph, int(ops.call[np.concatenate(backward_passes(graph, index))].max()))
        rows = sums[before[sums] >= 0]
        if consumer is not None and len(rows):
            reductions.append((rows, Reduction(before[rows], (ops.end - ops.start)[rows], consumer)))
    if not reductions:
        return "no sum of gradients is on a stream of kernels during the backward pass"
    return _with_reductions(graph, reductions)


def work_before(graph: DependencyGraph, kind: int) -> Codes:
    """Return the operation that each operation waits for by an edge of this kind; -1 for none."""
    before = np.full(len(graph.operations.row), -1, np.int64)
    source, target = map(graph.operations_at, (graph.edges.source, graph.edges.target))
    chosen = (graph.edges.kind == kind) & (source >= 0) & (target >= 0)
    before[target[chosen]] = source[chosen]
    return before


SEPARATE_STREAM = GraphChange(
    "separate-stream",
    "Sum gradients on a separate stream",
    "the backward pass does not need the sums; ranks that arrive together",
    sum_on_another_stream,
    in_pytorch="async_op=True, and wait() before the optimizer; the backward pass does not need the sums; ranks that "
    "arrive together",
    programs=("training",),
    effort="a few lines",
)


def gather_groups(graph: DependencyGraph) -> list[Codes]:
    """Return the gathers in launch order, in groups: those without a kernel of the main stream between them."""
    ops = graph.operations
    gathers = np.flatnonzero((ops.family == GATHER) & (ops.code == COMMUNICATION) & (ops.call >= 0))
    if len(gathers) < 2:
        return []
    gathers = gathers[np.argsort(ops.call[gathers], kind="stable")]
    is_kernel = (ops.code == COMPUTE) & (ops.call >= 0)
    main = np.bincount(ops.stream[is_kernel], (ops.end - ops.start)[is_kernel], 1).argmax()
    launched = np.sort(ops.call[is_kernel & (ops.stream == main)])
    groups = np.split(gathers, np.flatnonzero(np.diff(np.searchsorted(launched, ops.call[gathers]))) + 1)
    return groups if len(groups) > 1 else []


def gather_ahead(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph in which each group of gathers is issued when the group before it was.

    The work after a group waits for it as before.
    """
    groups = gather_groups(graph)
    if not groups:
        return "no all-gathers or broadcasts with kernels between them"
    gathers = np.concatenate(groups)
    return with_price(graph, _with_gathers_ahead(graph, _mask(graph, gathers), groups), _mask(graph, gathers))


def _with_gathers_ahead(graph: DependencyGraph, is_gather: Mask, groups: Sequence[Codes]) -> DependencyGraph:
    """Return the graph in which each group but the first is issued with the inputs of the one before it."""
    gap, starts = graph.facts.kernel_gap, graph.starts
    heads, previous = (np.array([each[0] for each in some]) for some in (groups[1:], groups[:-1]))
    last = np.array([each[-1] for each in groups[:-1]])
    source, target = map(graph.operations_at, (graph.edges.source, graph.edges.target))
    moved = _mask(graph, np.concatenate(groups[1:]))
    into = (target >= 0) & moved[np.maximum(target, 0)] & (graph.edges.kind != RUN)
    edges = graph.edges.keep(~into | ((source >= 0) & is_gather[np.maximum(source, 0)]))
    edges = edges.plus(2 * graph.operations.call[previous], starts(heads), graph.facts.launch_latency, LAUNCH)
    edges = edges.plus(graph.ends(last), starts(heads), gap, STREAM)
    for inputs in (_other_work_before(graph, is_gather, previous), work_before(graph, EVENT)[previous]):
        known = inputs >= 0
        edges = edges.plus(graph.ends(inputs[known]), starts(heads[known]), gap, EVENT)
    # Other work of a stream follows the other work before it, where gathers were between them.
    follows = np.flatnonzero(~is_gather & (work_before(graph, STREAM) >= 0))
    follows = follows[is_gather[work_before(graph, STREAM)[follows]]]
    before = _other_work_before(graph, is_gather, follows)
    known = before >= 0
    return graph.with_edges(edges.plus(graph.ends(before[known]), starts(follows[known]), gap, STREAM))


def _other_work_before(graph: DependencyGraph, is_gather: Mask, rows: Codes) -> Codes:
    """Return the last work before each operation on its stream that is not a gather; -1 for none."""
    before = work_before(graph, STREAM)
    earlier = before[rows]
    while (skipped := (earlier >= 0) & is_gather[earlier]).any():
        earlier[skipped] = before[earlier[skipped]]
    return earlier


PREFETCH_COLLECTIVE = GraphChange(
    "prefetch-collective",
    "Issue each all-gather one ahead",
    "gathers that need no result of the work just before them; memory for one more result; ranks that arrive together",
    gather_ahead,
    in_pytorch="gathers of parameters, which need no result of the layer before (FSDP's backward_prefetch and "
    "set_modules_to_forward_prefetch); memory for one more layer; ranks that arrive together",
    effort="a few lines",
)


def with_connections(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph in which launched work starts when what the capture shows of its inputs is done."""
    ops, edges = graph.operations, graph.edges
    source, target = map(graph.operations_at, (edges.source, edges.target))
    into = (target >= 0) & (ops.queued[np.maximum(target, 0)] > 0)
    free = (ops.start - ops.queued)[np.maximum(target, 0)]
    # An event that is assumed, because the capture lacks what the wait waits for, ended during the queue's time.
    assumed = into & (edges.kind == EVENT) & (ops.end[np.maximum(source, 0)] > free)
    # The edge that arrives last holds what the others do not explain (docs/whatif.md "The model").
    usual = np.where(edges.kind == LAUNCH, graph.facts.launch_latency, graph.facts.kernel_gap)
    least = np.minimum(edges.weight, usual)
    late = into & np.isin(edges.kind, (LAUNCH, STREAM, ENGINE, EVENT))
    weight = np.where(late, np.maximum(edges.weight - ops.queued[np.maximum(target, 0)], least), edges.weight)
    if not assumed.any() and (weight == edges.weight).all():
        return "no launched work waits for a hardware queue, as far as the capture shows"
    after = graph.with_edges(edges.with_weight(weight).keep(~assumed))
    return with_price(graph, after, ops.code != COMPUTE)


CONNECTIONS = GraphChange(
    "connections",
    "Give each stream a hardware queue",
    "CUDA_DEVICE_MAX_CONNECTIONS is smaller than the number of streams; nothing that the capture lacks holds the work",
    with_connections,
    effort="one line",
)


def has_change(graph: DependencyGraph) -> Mask:
    """Return the mask of the collectives that a change of this module hides."""
    sums = (*sums_after_backward(graph).values(), *sums_on_streams_of_kernels(graph).values())
    return _mask(graph, np.concatenate([NONE, *sums, *gather_groups(graph)]))
