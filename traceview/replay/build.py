"""Build the dependency graph of the selected iterations from the host's edges and the GPU's.

The GPU's edges are launches, the order on streams, shared copy engines and waits for other streams. The latest edge of
an operation determines its start. The remaining slack is added to that edge, so that the unchanged graph starts each
operation at its measured time.

The host's edges are calls on threads, hand-overs between threads, and waits for the GPU and for room in a queue.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Intervals, Times, clip, covered_length, rows_by_code, union
from traceview.measure.exposure import queued_time
from traceview.measure.kernels import launch_sizes, sm_limits
from traceview.measure.loading import MIN_LOADING, BatchCopies, is_input
from traceview.measure.shared_work import launch_rows
from traceview.model.trace import KINDS, ROLES, Trace, names_load_data, names_match
from traceview.replay.constants import (
    ASYNC_CALL,
    LAUNCH_CALL,
    QUEUE_DEPTH,
    SYNC_RETURN,
)
from traceview.replay.facts import machine_facts, previous_in_group
from traceview.replay.graph import (
    CALL,
    ENGINE,
    EVENT,
    GAP,
    LAUNCH,
    NEVER,
    QUEUE,
    RUN,
    STREAM,
    WAIT,
    Codes,
    DependencyGraph,
    Edges,
    GraphCalls,
    MachineFacts,
    Operations,
)
from traceview.replay.select import Selection
from traceview.replay.storms import name_families

WAITS_FOR_EVENT = "StreamWaitEvent"
BACKWARD = r"(?i)backward"
MAX_GAP_OF_CALLS = 50_000  # ns: a thread without calls for longer is waiting for another thread that calls meanwhile
CLOCK_ERROR = 1_000  # ns: the maximum difference between the host's and the GPU's clock
LONG_LAUNCH = 10 * LAUNCH_CALL  # ns: a launch call that takes longer has waited
# ns: in a longer pause a thread may wait in what no profiler records: it polls, or a callback wakes it.
UNSEEN_WAIT = 1_000_000
MAX_TAIL = 0.05  # share of such a pause that is left after the end of the GPU's work
MOSTLY = 0.5
QUEUE_MARGIN = 100  # operations: a launch call has waited for room if the queue lacked at most this many


def calls_of(trace: Trace, selection: Selection, begin: int, end: int) -> GraphCalls:
    """Return the outermost calls in [begin, end) that launch, synchronize, block, allocate or wait for an event."""
    low, high = np.searchsorted(trace.api["start"].to_numpy(), [begin, end]).tolist()
    frame = trace.api[low:high].with_row_index("row", low).filter(pl.col("process") == selection.work.process)
    launched = _Launched.between(trace, low, high)
    role = frame["role"].to_physical()
    frame = frame.filter(
        role.is_in([ROLES.index(name) for name in ("sync", "blocking_copy", "memory")])
        | pl.Series(launched.launches[frame["row"].to_numpy() - low])
        | pl.Series(names_match(frame["name"], WAITS_FOR_EVENT))
    )
    frame = frame.filter(pl.col("end") >= pl.col("end").cum_max().over("thread")).sort("start", "row")
    start, stop, thread = (frame[name].to_numpy().astype(np.int64) for name in ("start", "end", "thread"))
    codes = frame["role"].to_physical().to_numpy()
    iteration = np.searchsorted(selection.work.edges[:-1], start, side="right") - 1
    returned = _predecessors(start, stop, thread)[1]
    matches = names_match(trace.ranges["name"], BACKWARD)
    backward = covered_length(_named_ranges(trace, selection, matches), start, start + 1) > 0
    calls = GraphCalls(
        frame["row"].to_numpy().astype(np.int64),
        start,
        stop,
        thread,
        iteration,
        codes == ROLES.index("sync"),
        codes == ROLES.index("blocking_copy"),
        np.zeros(len(start), np.int64),
        (thread != selection.thread) | backward,
        codes == ROLES.index("memory"),
        (codes == ROLES.index("memory")) & ~names_match(frame["name"], "Async"),
    )
    kernels = trace.api["start"][low:high].to_numpy()[launched.kernels]
    named = covered_length(_loading_ranges(trace, selection, begin, end, kernels), np.minimum(returned, start), start)
    before = _time_before_batches(trace, launched.copied[:, calls.row - low], selection, calls, returned)
    return calls._replace(loading=np.maximum(named, before))


def _time_before_batches(
    trace: Trace, copied: Times, selection: Selection, calls: GraphCalls, returned: Times
) -> Times:
    """Return the host time that precedes the copies of each iteration's batch, beyond the thread's usual gaps.

    The longest pause before a batch in each iteration is that of the loader. `copied` has the bytes that each call
    copies to the GPU, and to the host.
    """
    chosen = np.zeros(len(calls.row), np.int64)
    rows = np.flatnonzero((calls.thread == selection.thread) & (calls.iteration >= 0))
    pause = np.maximum(calls.start - returned, 0)[rows]
    batch = BatchCopies.from_trace(trace).bytes_after(calls.thread[rows], calls.start[rows], pause)
    previous = np.roll(copied[:, rows], 1, axis=1)
    before = np.flatnonzero(is_input(batch, *previous))
    if not len(before):
        return chosen
    # The longest pause of each iteration, found as the last of those sorted by iteration and pause.
    iteration = calls.iteration[rows[before]]
    order = np.lexsort((pause[before], iteration))
    last = before[order[np.append(np.diff(iteration[order]) != 0, True)]]
    beyond = pause[last] - int(np.median(pause))
    chosen[rows[last]] = np.where(beyond >= MIN_LOADING * selection.measured_ns, beyond, 0)
    return chosen


class _Launched(NamedTuple):
    """What the calls [low, high) of Trace.api launch.

    `launches` marks the calls that launch work, `kernels` those that launch kernels. `copied` has the bytes that each
    call copies to the GPU, and to the host.
    """

    launches: NDArray[np.bool_]
    kernels: NDArray[np.bool_]
    copied: Times

    @classmethod
    def between(cls, trace: Trace, low: int, high: int) -> _Launched:
        """Collect the operations of these calls."""
        launch = launch_rows(trace.operations)
        rows = np.flatnonzero((launch >= low) & (launch < high))
        work = trace.operations.select("class", "kind", "bytes")[rows]
        call, copied = launch[rows] - low, np.zeros((2, high - low), np.int64)
        launches, kernels = np.zeros(high - low, np.bool_), np.zeros(high - low, np.bool_)
        launches[call] = True
        kernels[call[(work["class"] == "compute").to_numpy()]] = True
        for sums, kind in zip(copied, ("h2d", "d2h"), strict=True):
            own = (work["kind"] == kind).fill_null(False).to_numpy()
            np.add.at(sums, call[own], work["bytes"].to_numpy()[own])
        return cls(launches, kernels, copied)


def _loading_ranges(trace: Trace, selection: Selection, begin: int, end: int, launches: Times) -> Intervals:
    """Return the ranges in [begin, end) named after loading in which no kernel is launched.

    An iteration may be called `batch 7`. `launches` are the times of the launches of kernels.
    """
    named = clip(_named_ranges(trace, selection, names_load_data(trace.ranges["name"])), begin, end)
    idle = np.searchsorted(launches, named.start) == np.searchsorted(launches, named.end)
    return Intervals(named.start[idle], named.end[idle])


def _named_ranges(trace: Trace, selection: Selection, matches: NDArray[np.bool_]) -> Intervals:
    """Return the union of the marked ranges on the selected thread."""
    ranges = trace.ranges.filter(matches & (trace.ranges["thread"].to_numpy() == selection.thread))
    return union(ranges["start"].to_numpy(), ranges["end"].to_numpy())


def _predecessors(start: Times, end: Times, thread: Codes) -> tuple[Codes, Times]:
    """Return the call that each call follows (-1 for none), and the time that call returned.

    It is the previous call on the same thread. After a long gap on the thread, it is the last call of another thread
    that began in the gap: a call of autograd's thread if this thread waits for the backward pass, or the reverse.
    """
    count = len(start)
    own = np.full(count, -1, np.int64)
    for number in np.unique(thread):
        rows = np.flatnonzero(thread == number)
        own[rows[1:]] = rows[:-1]
    returned = np.where(own >= 0, end[own], start)
    ordered = np.argsort(end, kind="stable")
    last = np.searchsorted(end[ordered], start, side="right") - 1
    other = np.where(last >= 0, ordered[last], -1)
    silent = (own < 0) | (start - returned > MAX_GAP_OF_CALLS)
    handed_over = silent & (other >= 0) & (thread[other] != thread) & ((own < 0) | (start[other] >= returned))
    before = np.where(handed_over, other, own)
    return before, np.where(before >= 0, end[before], start)


def host_edges(trace: Trace, calls: GraphCalls, ops: Operations) -> tuple[Edges, Codes]:
    """Return the edges into calls, and the calls without a predecessor."""
    rows = np.arange(len(calls.row))
    before, returned = _predecessors(calls.start, calls.end, calls.thread)
    follows = before >= 0
    base = 2 * len(rows)
    target, tail = _awaited_with_tails(trace, calls, ops)
    waits = target >= 0
    own, pause = calls.end - calls.start, calls.start - returned
    awaited, after = _unseen_waits(calls, ops, returned)
    unseen = awaited >= 0
    held = waits & (tail < own)
    least = np.where(calls.blocking, ASYNC_CALL, SYNC_RETURN)
    tail = np.where(waits & ~held, np.minimum(tail, least), tail)
    none = np.zeros(0, np.int64)
    edges = Edges(none, none, none, none)
    edges = edges.plus(2 * before[follows] + 1, 2 * rows[follows], np.where(unseen, 0, pause)[follows], GAP)
    edges = edges.plus(2 * rows, 2 * rows + 1, np.where(held, np.minimum(own, least), own), CALL)
    edges = edges.plus(base + 2 * target[waits] + 1, 2 * rows[waits] + 1, tail[waits], WAIT)
    edges = edges.plus(base + 2 * awaited[unseen] + 1, 2 * rows[unseen], after[unseen], QUEUE)
    return edges, rows[~follows]


def _unseen_waits(calls: GraphCalls, ops: Operations, returned: Times) -> tuple[Codes, Times]:
    """Return the operation for which the host waits unseen before each call (-1 for none), and the ns since its end.

    A thread that polls, or that a callback wakes, makes no call that waits, and goes on as soon as all launched work
    ends. A thread that works may be as late by chance: so there is such a wait only if most of the long pauses in which
    launched work ends are like that.
    """
    none = np.full(len(calls.row), -1, np.int64)
    if not len(ops.row) or not len(calls.row):
        return none, none
    launched = np.where(ops.call >= 0, calls.start[ops.call], NEVER)
    order = np.argsort(launched, kind="stable")
    ends = np.maximum.accumulate(ops.end[order])
    last = np.maximum.accumulate(np.where(ops.end[order] == ends, np.arange(len(order)), 0))
    at = np.searchsorted(launched[order], returned, side="right") - 1
    pause, after = calls.start - returned, calls.start - ends[at]
    ending = (at >= 0) & (pause > UNSEEN_WAIT) & (ends[at] > returned) & (after >= 0)
    waits = ending & (after <= MAX_TAIL * pause)
    if pause[waits].sum() <= MOSTLY * pause[ending].sum():
        return none, none
    return np.where(waits, order[last[at]], -1), after


def _awaited_with_tails(trace: Trace, calls: GraphCalls, ops: Operations) -> tuple[Codes, Times]:
    """Return the operation that each call waits for (-1 for none), and the ns from its end to the call's return."""
    target = np.full(len(calls.row), -1, np.int64)
    launched_ops = np.flatnonzero(ops.call >= 0)
    blocking = launched_ops[calls.blocking[ops.call[launched_ops]]]
    target[ops.call[blocking]] = blocking
    call_stream = _synchronized_streams(trace, calls)
    launched = np.where(ops.call >= 0, calls.start[ops.call], ops.start)
    waiting = calls.sync | calls.waiting_memory
    for stream in np.unique(call_stream[waiting]):
        rows = np.flatnonzero(waiting & (call_stream == stream))
        chosen = np.arange(len(ops.row))
        if stream >= 0:
            chosen = chosen[ops.stream == stream]
        chosen = chosen[np.argsort(ops.end[chosen], kind="stable")]
        at = np.searchsorted(ops.end[chosen], calls.end[rows] + CLOCK_ERROR, side="right") - 1
        valid = at >= 0
        last = chosen[at[valid]]
        early = launched[last] <= calls.start[rows[valid]]
        target[rows[valid][early]] = last[early]
    ends = np.where(target >= 0, ops.end[target], 0) if len(ops.end) else target
    return target, calls.end - ends


def _synchronized_streams(trace: Trace, calls: GraphCalls) -> Codes:
    """Return the row of Trace.streams that each call synchronizes; -1 for the device, or if unknown."""
    streams = trace.streams.with_row_index("stream").select("stream", "stream_id", "process", "context")
    synchronized = (
        trace.stream_events.filter(pl.col("kind") == "synchronize", pl.col("launch").is_in(calls.row))
        .join(streams, on=["stream_id", "process", "context"])
        .unique("launch")
    )
    lookup = dict(zip(synchronized["launch"].to_list(), synchronized["stream"].to_list(), strict=True))
    return np.array([lookup.get(row, -1) for row in calls.row.tolist()], np.int64)


def queue_edges(calls: GraphCalls, ops: Operations, edges: Edges) -> Edges:
    """Return the edges with the launch queues of streams added.

    A stream holds about a thousand launched operations; the next launch call waits for room. A host that runs ahead
    therefore waits inside launch calls. Such a call returns when the operation QUEUE_DEPTH places earlier starts, and
    its own work becomes as long as that of other launch calls.
    """
    launched = np.flatnonzero(ops.call >= 0)
    for _, members in rows_by_code(ops.stream[launched]):
        if len(members) > QUEUE_DEPTH - QUEUE_MARGIN:  # a shorter queue is never full
            rows = launched[members]
            edges = _with_stream_queue(calls, ops, edges, rows[np.argsort(ops.call[rows], kind="stable")])
    return edges


def _with_stream_queue(calls: GraphCalls, ops: Operations, edges: Edges, rows: Codes) -> Edges:
    call = ops.call[rows]
    end, own = calls.end[call], (calls.end - calls.start)[call]
    begun = np.searchsorted(np.sort(ops.start[rows]), end, side="right") - 1
    place = np.arange(len(rows))
    depth = place - begun
    held = (own > LONG_LAUNCH) & (depth > QUEUE_DEPTH - QUEUE_MARGIN) & (begun >= 0) & ~calls.blocking[call]
    usual = int(np.median(depth[held])) if held.any() else QUEUE_DEPTH
    before = np.where(held, begun, place - usual)
    valid = before >= 0
    since = end - ops.start[rows[np.maximum(before, 0)]]
    tail = np.where(held, since, np.minimum(since, 0))
    weight = edges.weight.copy()
    shorter = np.zeros(len(calls.row), np.bool_)
    shorter[call[held]] = True
    mine = (edges.kind == CALL) & shorter[np.minimum(edges.target // 2, len(calls.row) - 1)]
    weight[mine] = np.minimum(weight[mine], LAUNCH_CALL)
    base = 2 * len(calls.row)
    source = base + 2 * rows[before[valid]]
    return edges.with_weight(weight).plus(source, 2 * call[valid] + 1, tail[valid], QUEUE)


def build(trace: Trace, selection: Selection) -> DependencyGraph:
    """Return the graph of the selected iterations, with the operations still running when they begin."""
    begin, end = int(selection.work.edges[selection.begin]), int(selection.work.edges[selection.last])
    calls = calls_of(trace, selection, begin, end)
    ops = operations_of(trace, selection, calls, begin)
    facts = machine_facts(trace, calls, ops, selection)
    host, first_calls = host_edges(trace, calls, ops)
    gpu, first_operations = gpu_edges(trace, calls, ops, facts)
    base = 2 * len(calls.row)
    release = np.full(base + 2 * len(ops.row), NEVER, np.int64)
    release[2 * first_calls] = calls.start[first_calls]
    release[base + 2 * first_operations] = ops.start[first_operations]
    edges = queue_edges(calls, ops, Edges(*map(np.concatenate, zip(host, gpu, strict=True))))
    return DependencyGraph(calls, ops, edges, release, selection.first, selection.last, facts, [])


MAX_OWN_GAP = 200_000  # ns: a thread that launches nothing for longer after a wait has handed over to another thread


def operations_of(trace: Trace, selection: Selection, calls: GraphCalls, begin: int) -> Operations:
    """Return the operations that the calls launch, and those launched before `begin` that end after it."""
    end = selection.work.edges[selection.last]
    low, high = np.searchsorted(trace.api["start"].to_numpy(), [begin, end]).tolist()
    launch = launch_rows(trace.operations)
    running = (launch >= low) | (trace.operations["end"].to_numpy() > begin)
    rows = np.flatnonzero((launch >= 0) & (launch < high) & running)
    rows = rows[trace.operations["process"].to_numpy()[rows] == selection.work.process]
    outer = _outer_calls(calls, launch[rows])
    known = (outer >= 0) | (launch[rows] < low)
    chosen, call = rows[known], outer[known]
    frame = trace.operations[chosen]
    column = {name: frame[name].to_physical().fill_null(-1).to_numpy().astype(np.int64) for name in ("kind", "memory")}
    blocks, waves = _launch_sizes(trace, frame)
    return Operations(
        chosen,
        frame["start"].to_numpy(),
        frame["end"].to_numpy(),
        call,
        np.where(call >= 0, selection.work.iteration[chosen], -1),
        frame["stream"].to_numpy().astype(np.int64),
        frame["device"].to_numpy().astype(np.int64),
        frame["class"].to_physical().to_numpy().astype(np.int64),
        column["kind"],
        column["memory"],
        frame["bytes"].to_numpy(),
        frame["name"].to_physical().to_numpy().astype(np.int64),
        name_families(trace.shapes, frame["shape"].to_numpy(), frame["name"]),
        blocks,
        queued_time(trace, chosen),
        waves,
    )


def _launch_sizes(trace: Trace, frame: pl.DataFrame) -> tuple[Codes, NDArray[np.float64]]:
    """Return the blocks and the waves of each operation; unknown ones where nothing communicates, which needs none."""
    blocks, waves = np.zeros(len(frame), np.int64), np.full(len(frame), np.nan)
    if (frame["class"] == "communication").any():
        limits = sm_limits(trace, int(frame["device"][0]))
        shapes, place = np.unique(frame["shape"].to_numpy(), return_inverse=True)
        sizes = [launch_sizes(limits, row) for row in trace.shapes[shapes].iter_rows(named=True)]
        blocks, waves = (np.array(values)[place] for values in zip(*sizes, strict=True))
    return blocks, waves


def _outer_calls(calls: GraphCalls, launch: Codes) -> Codes:
    """Return the modelled call that each of these rows of Trace.api is; -1 for none."""
    place = np.minimum(np.searchsorted(calls.row, launch), max(len(calls.row) - 1, 0))
    return np.where(calls.row[place] == launch, place, -1) if len(calls.row) else np.full(len(launch), -1, np.int64)


def gpu_edges(trace: Trace, calls: GraphCalls, ops: Operations, facts: MachineFacts) -> tuple[Edges, Codes]:
    """Return the edges into operations, and the operations without a predecessor."""
    base, rows = 2 * len(calls.row), np.arange(len(ops.row))
    launch = np.where(ops.call >= 0, calls.start[ops.call], NEVER) if len(calls.row) else np.full(len(rows), NEVER)
    # Each direction and device has a copy engine. Other operations get a unique negative group.
    uses_engine = np.isin(ops.kind, [KINDS.index("h2d"), KINDS.index("d2h")])
    engine = np.where(uses_engine, ops.device * 16 + ops.kind, -1 - rows)
    shared = previous_in_group(engine)
    before, event = previous_in_group(ops.stream), _awaited_operations(trace, calls, ops)
    shared = np.where(shared == before, -1, shared)
    sources = (2 * ops.call, *(base + 2 * other + 1 for other in (before, shared, event)))
    times = [launch, *(np.where(other >= 0, ops.end[other], NEVER) for other in (before, shared, event))]
    limits = (facts.launch_latency, facts.kernel_gap, facts.kernel_gap, facts.kernel_gap)
    weights = [np.minimum(limit, ops.start - time) for limit, time in zip(limits, times, strict=True)]
    reached = np.stack([time + weight for time, weight in zip(times, weights, strict=True)])
    reached[np.stack(times) == NEVER] = NEVER
    binding, latest = reached.argmax(axis=0), reached.max(axis=0)
    none = np.zeros(0, np.int64)
    edges = Edges(none, none, none, none)
    for index, kind in enumerate((LAUNCH, STREAM, ENGINE, EVENT)):
        weight = weights[index] + np.where(binding == index, ops.start - latest, 0)
        valid = times[index] != NEVER
        edges = edges.plus(sources[index][valid], base + 2 * rows[valid], weight[valid], kind)
    edges = edges.plus(base + 2 * rows, base + 2 * rows + 1, ops.end - ops.start, RUN)
    return edges, rows[latest == NEVER]


def _awaited_operations(trace: Trace, calls: GraphCalls, ops: Operations) -> Codes:
    """Return the operation of another stream that each operation waits for by an event; -1 for none.

    The operation launched next after cudaStreamWaitEvent waits. The export has neither the stream nor the record of
    most events, so the awaited operation is the last one launched before the call that ended before the wait did.
    """
    target = np.full(len(ops.row), -1, np.int64)
    launched = np.flatnonzero(ops.call >= 0)
    waits = np.flatnonzero(names_match(trace.api["name"].gather(calls.row), WAITS_FOR_EVENT))
    if not len(waits) or not len(launched):
        return target
    launched = launched[np.argsort(ops.call[launched], kind="stable")]
    # Keys are (thread, call), so that the search finds the next launch of the same thread.
    width = len(calls.row) + 1
    keys = calls.thread[ops.call[launched]] * width + ops.call[launched]
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], calls.thread[waits] * width + waits)
    valid = place < len(order)
    later = np.where(valid, launched[order[np.minimum(place, len(order) - 1)]], -1)
    later = np.where(calls.thread[ops.call[later]] == calls.thread[waits], later, -1)
    # If the thread launches nothing more, the next launch of any thread waits: the optimizer waits for DDP's wait.
    following = np.searchsorted(ops.call[launched], waits, side="right")
    anyone = np.where(following < len(launched), launched[np.minimum(following, len(launched) - 1)], -1)
    silent = (later < 0) | (calls.start[ops.call[later]] - calls.end[waits] > MAX_OWN_GAP)
    later = np.where(silent & (anyone >= 0), anyone, later)
    return _fill_awaited(calls, ops, target, waits[later >= 0], later[later >= 0])


def _fill_awaited(calls: GraphCalls, ops: Operations, target: Codes, waits: Codes, later: Codes) -> Codes:
    """Set the latest operation that each operation of `later` can have waited for, and return `target`."""
    ended = np.full(len(later), NEVER, np.int64)
    for stream in np.unique(ops.stream):
        rows = np.flatnonzero(ops.stream == stream)
        began = np.where(ops.call[rows] >= 0, calls.start[ops.call[rows]], NEVER)
        known = np.searchsorted(np.maximum.accumulate(began), calls.start[waits], side="left")
        gone = np.searchsorted(np.maximum.accumulate(ops.end[rows]), ops.start[later], side="right")
        last = np.minimum(known, gone) - 1
        better = (last >= 0) & (ops.stream[later] != stream)
        ends = np.where(better, ops.end[rows[last]], NEVER)
        better &= ends > ended
        target[later[better]] = rows[last[better]]
        ended = np.where(better, ends, ended)
    return target
