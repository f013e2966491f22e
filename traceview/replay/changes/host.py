"""Changes to the time of the host: reuse memory, synchronize less often, and hide data loading.

docs/whatif.md "The changes".
"""

from __future__ import annotations

import numpy as np

from traceview.measure.loading import MIN_BATCH
from traceview.replay.changes.base import COMMUNICATION, COMPUTE, D2H, GraphChange, launching_calls
from traceview.replay.constants import EVENT_CALL, LOADING_LEFT, READING
from traceview.replay.graph import CALL, EVENT, GAP, WAIT, Codes, DependencyGraph, Edges, Mask

MOSTLY = 0.5  # share of the time of memory calls from which one call explains it


def reuse_memory(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph without the time of memory calls.

    In a run without iterations, a call that takes most of that time stays: it creates a context or pins memory, once.
    """
    memory = graph.calls.memory.copy()
    length = np.where(memory, graph.calls.end - graph.calls.start, 0)
    if graph.counted == 1 and length.max(initial=0) > MOSTLY * length.sum():
        memory[np.argmax(length)] = False
    if not memory.any():
        return "no iteration allocates or frees memory"
    weight = graph.edges.weight.copy()
    weight[graph.call_edges(CALL, memory)] = 0
    return graph.with_edges(graph.edges.with_weight(weight).keep(~graph.call_edges(WAIT, memory)))


ALLOCATE = GraphChange(
    "allocate",
    "Reuse memory instead of allocating it",
    "buffers that are allocated before the loop and fit all iterations",
    reuse_memory,
    in_pytorch="the caching allocator keeps its memory: no empty_cache() in the loop, few shapes, memory to spare",
    effort="a few lines",
)


EVERY = 10  # iterations


def synchronize_less(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph with the waits of only every EVERYth iteration."""
    calls = graph.calls
    reads = _reading_calls(graph)
    waits = ((calls.sync & ~_need_arrays(graph)) | (reads & calls.blocking)) & (calls.iteration >= 0)
    per = np.bincount(calls.iteration[waits], minlength=1)
    if np.count_nonzero(per) * 2 <= graph.counted:
        return "the host does not wait for the GPU in most iterations"
    gone = waits & ((calls.iteration - graph.first) % EVERY != EVERY - 1)
    if not gone.any():
        return "no iteration has a synchronization that could be removed: every tenth one stays"
    places = _places(graph, waits)
    gone_reads = reads & (gone | _next_on_thread(graph, gone))
    weight = graph.edges.weight.copy()
    call = graph.call_edges(CALL, gone)
    weight[call] = np.minimum(weight[call], EVENT_CALL)
    weight[graph.call_edges(CALL, gone_reads)] = 0
    gap = graph.call_edges(GAP, gone_reads)
    beyond = np.maximum(weight[gap] - int(np.median(weight[graph.edges.kind == GAP])), 0)
    weight[gap] -= (beyond * READING).astype(np.int64)
    kept = graph.edges.with_weight(weight).keep(~graph.call_edges(WAIT, gone | gone_reads))
    changed = graph.with_edges(_with_events(graph, gone, kept))
    count = round(np.count_nonzero(np.diff(places, prepend=-1)) / max(int(np.count_nonzero(per)), 1))
    if count < 2:
        return changed
    return changed._replace(remarks=(*graph.remarks, f"all of the {count} waits of an iteration are removed"))


def _with_events(graph: DependencyGraph, gone: Mask, edges: Edges) -> Edges:
    """Return the edges, and an event in place of each wait: the last kernel before it, then those of other streams.

    These may need what the kernel wrote, so that the order of the two stays.
    """
    ops, calls = graph.operations, np.flatnonzero(gone)
    is_kernel = np.isin(ops.code, (COMPUTE, COMMUNICATION)) & (ops.call >= 0)
    for stream in np.unique(ops.stream[is_kernel]):
        mine = is_kernel & (ops.stream == stream)
        later = np.flatnonzero(mine)[np.argsort(ops.call[mine], kind="stable")]
        others = np.flatnonzero(is_kernel & ~mine & (ops.device == ops.device[later[0]]))
        others = others[np.argsort(ops.end[others], kind="stable")]
        after = np.searchsorted(ops.call[later], calls, side="right")
        before = np.searchsorted(ops.end[others], graph.calls.end[calls], side="right") - 1
        known = (after < len(later)) & (before >= 0)
        source, target = others[before[known]], later[after[known]]
        edges = edges.plus(graph.ends(source), graph.starts(target), graph.facts.kernel_gap, EVENT)
    return edges


def _reading_calls(graph: DependencyGraph) -> Mask:
    """Return the mask of calls that copy a value to the host; an array is input of what the host does next."""
    return launching_calls(graph, (graph.operations.kind == D2H) & (graph.operations.size < MIN_BATCH))


def _need_arrays(graph: DependencyGraph) -> Mask:
    """Return the mask of calls that wait for a copy of an array to the host, which works on it next."""
    ops, edges = graph.operations, graph.edges
    waits = np.flatnonzero((edges.kind == WAIT) & (edges.target // 2 < len(graph.calls.row)))
    source = graph.operations_at(edges.source[waits])
    arrays = (source >= 0) & (ops.kind[source] == D2H) & (ops.size[source] >= MIN_BATCH)
    mask = np.zeros(len(graph.calls.row), np.bool_)
    mask[edges.target[waits[arrays]] // 2] = True
    return mask


def _next_on_thread(graph: DependencyGraph, chosen: Mask) -> Mask:
    """Return the mask of calls whose next call on their thread is chosen."""
    order = np.lexsort((np.arange(len(chosen)), graph.calls.thread))
    same = graph.calls.thread[order][1:] == graph.calls.thread[order][:-1]
    mask = np.zeros(len(chosen), np.bool_)
    mask[order[:-1][same & chosen[order[1:]]]] = True
    return mask


def _places(graph: DependencyGraph, waits: Mask) -> Codes:
    """Return the place of each wait among those of its iteration; waits without a kernel between them share a place."""
    rows = np.flatnonzero(waits)
    launched = np.cumsum(launching_calls(graph, graph.operations.code == COMPUTE))[rows]
    iteration = graph.calls.iteration[rows]
    first = np.diff(iteration, prepend=-1) != 0
    number = np.cumsum(first | (np.diff(launched, prepend=-1) != 0))
    places: Codes = number - number[first][np.cumsum(first) - 1]
    return places


SYNCHRONIZE = GraphChange(
    "sync",
    f"Synchronize every {EVERY} steps, or by an event",
    "values such as losses are read later, no launch depends on them; memory for the batches that the host is ahead",
    synchronize_less,
    effort="a few lines",
)


def hide_loading(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph without the host's time in data-loading ranges."""
    loading = graph.calls.loading
    if not loading.any():
        return "the host does not pause before it copies a batch, and no range is named after data, batches or loading"
    edges, weight = graph.edges, graph.edges.weight.copy()
    gap = graph.call_edges(GAP, loading > 0)
    hidden = (loading[edges.target[gap] // 2] * (1 - LOADING_LEFT)).astype(np.int64)
    weight[gap] = np.maximum(0, weight[gap] - hidden)
    return graph.with_weight(weight)


LOADING = GraphChange(
    "load",
    "Hide data loading",
    "other threads or processes that prepare the input and keep up",
    hide_loading,
    in_pytorch="workers that keep up: num_workers, persistent_workers",
    programs=("pytorch", "jax", "onnx", "tensorrt", "tensorflow"),
    repeats=True,
    effort="one line",
)
