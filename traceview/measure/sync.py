"""Calls that block the host, and the GPU idle time that they cause (docs/definitions.md "Synchronization").

A wait is blocking calls of one thread without a launch between them. A moment inside several calls belongs to the call
that began first, and a restart gap does not include moments inside calls, so each idle ns counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import EMPTY, Coverage, Intervals, Times
from traceview.measure.activity import Activity, overlaps_window
from traceview.measure.base import Measure
from traceview.measure.shared_work import launch_rows
from traceview.measure.sums import sums_by_owner
from traceview.model.analysis import HostUse, SyncUse
from traceview.model.columns import Table
from traceview.model.frozen import dataclass
from traceview.model.rows import ApiTotal
from traceview.model.trace import ROLES, Trace

NOTHING = Coverage.from_union(EMPTY)


@dataclass(slots=True)
class ProcessGpus:
    """The GPUs that a process uses: their work, their windows, and when any of them is busy.

    `group` is the same for processes that share a GPU.
    """

    group: int
    devices: list[Activity] = field(default_factory=list)
    busy: Coverage = NOTHING
    windows: Coverage = NOTHING


class BlockingCalls(NamedTuple):
    """Blocking calls in the order of Trace.api: their times inside the window, and when they returned.

    `wait` is the number of the wait that each call belongs to, `blocked` the length of the call inside the window.
    """

    process: NDArray[np.int32]
    start: Times
    end: Times
    returned: Times
    wait: Times
    blocked: Times

    @property
    def wait_count(self) -> int:
        """The number of waits."""
        return int(self.wait.max(initial=-1)) + 1


class WaitCosts(NamedTuple):
    """When each call's wait returned, the call's `waited` ns, and its shares of the wait's other figures in ns."""

    returned: Times
    waited: Times
    idle_in_wait: Times
    refill: Times
    cost: Times


def number_waits(trace: Trace, rows: Times) -> Times:
    """Return the number of the wait of each blocking call (`rows` of Trace.api, ascending).

    A call begins a new wait unless its thread made a blocking call before and has launched nothing since.
    """
    launches = np.zeros(len(trace.api) + 1, np.bool_)
    launches[launch_rows(trace.operations)] = True  # -1 marks the entry after the last row
    blocking = np.zeros(len(trace.api), np.bool_)
    blocking[rows] = True
    thread = trace.api["thread"].to_numpy()
    relevant = np.flatnonzero(launches[:-1] | blocking)
    by_thread = relevant[np.argsort(thread[relevant], kind="stable")]
    at = np.flatnonzero(blocking[by_thread])
    calls = by_thread[at]
    # A launch lies between two calls of a thread that are not neighbours.
    begins = (np.diff(thread[calls], prepend=-1) != 0) | (np.diff(at, prepend=-2) != 1)
    wait = np.empty(len(rows), np.int64)
    wait[np.searchsorted(rows, calls)] = np.cumsum(begins) - 1
    return wait


def measure_waits(trace: Trace, activities: Sequence[Activity], calls: BlockingCalls) -> WaitCosts:
    """Measure the cost of each wait, and share it between its calls in proportion to its blocked time."""
    gpus = _gpus_by_process(trace, activities)
    own = _own_parts(calls, gpus)
    waited = np.zeros(len(calls.start), np.int64)
    idle = np.zeros(calls.wait_count, np.int64)
    for process, used in gpus.items():
        some = np.flatnonzero(calls.process == process)
        start, end = own.start[some], own.end[some]
        waited[some] = busy = used.busy.length_between(calls.start[some], calls.end[some])
        if not np.array_equal(start, calls.start[some]):
            busy = used.busy.length_between(start, end)
        np.add.at(idle, calls.wait[some], used.windows.length_between(start, end) - busy)
    returned = np.full(calls.wait_count, intervals.BEFORE_ALL, np.int64)
    np.maximum.at(returned, calls.wait, calls.returned)
    refill = np.zeros(calls.wait_count, np.int64)
    for device in activities:
        wait, start, end = _restart_gaps(trace, device, calls, returned)
        ns = end - start - _idle_in_calls(trace, device, gpus, calls, own, start, end)
        refill[wait] = np.maximum(refill[wait], ns)
    blocked = sums_by_owner(calls.wait, calls.blocked, calls.wait_count)
    shares = (_shares(calls, blocked, total) for total in (idle, refill, np.minimum(idle + refill, blocked)))
    return WaitCosts(returned[calls.wait], waited, *shares)


def _gpus_by_process(trace: Trace, activities: Sequence[Activity]) -> dict[int, ProcessGpus]:
    gpus: dict[int, ProcessGpus] = {}
    for device in activities:
        sharing = [gpus.setdefault(process, ProcessGpus(process)) for process in _processes(trace, device)]
        joined = {used.group for used in sharing}
        for used in gpus.values():
            used.group = min(joined) if used.group in joined else used.group
        for used in sharing:
            used.devices.append(device)
    for used in gpus.values():
        used.busy = Coverage.from_union(_merge([device.busy for device in used.devices]))
        edges = np.array([(device.window.start, device.window.end) for device in used.devices], np.int64)
        used.windows = Coverage.from_union(intervals.union(edges[:, 0], edges[:, 1]))
    return gpus


def _processes(trace: Trace, device: Activity) -> list[int]:
    processes: list[int] = trace.devices["processes"][device.device].to_list()
    return processes


def _merge(unions: list[Intervals]) -> Intervals:
    if len(unions) == 1:
        return unions[0]
    return intervals.union(*(np.concatenate(sides) for sides in zip(*unions, strict=True)))


def _own_parts(calls: BlockingCalls, gpus: dict[int, ProcessGpus]) -> Intervals:
    """Return the stretch of each call that no earlier call of its group of processes covers."""
    start, end = calls.start.copy(), calls.end.copy()
    groups: dict[int, list[int]] = {}
    for process, used in gpus.items():
        groups.setdefault(used.group, []).append(process)
    for processes in groups.values():
        some = np.flatnonzero(np.isin(calls.process, processes))
        reach = np.maximum.accumulate(end[some])
        start[some[1:]] = np.maximum(start[some[1:]], reach[:-1])
    return Intervals(start, np.maximum(start, end))


def _restart_gaps(trace: Trace, device: Activity, calls: BlockingCalls, returned: Times) -> tuple[Times, Times, Times]:
    """Return the waits with a restart gap on this device, and the start and end of each restart gap.

    It belongs to the last wait of the process that returned before the launch that ends the gap.
    """
    process = np.zeros(calls.wait_count, np.int32)
    process[calls.wait] = calls.process
    gaps, operation = device.idle_gaps()
    gap = np.searchsorted(gaps.start, returned, side="right") - 1
    wait = np.flatnonzero(gap >= 0)
    wait = wait[operation[gap[wait]] >= 0]
    ending = trace.operations.select("start", "launch")[operation[gap[wait]]]
    launch = ending["launch"].fill_null(-1).to_numpy()
    call_start, call_process = (trace.api[name].gather(launch.clip(0)).to_numpy() for name in ("start", "process"))
    before_launch = returned[wait] <= np.minimum(call_start, ending["start"].to_numpy())
    wait = wait[(launch >= 0) & (call_process == process[wait]) & before_launch]
    wait = wait[np.lexsort((returned[wait], gap[wait]))]
    wait = wait[np.diff(gap[wait], append=-1) != 0]  # the last wait of each gap
    wait = wait[returned[wait] < gaps.end[gap[wait]]]
    return wait, returned[wait], gaps.end[gap[wait]]


def _idle_in_calls(
    trace: Trace,
    device: Activity,
    gpus: dict[int, ProcessGpus],
    calls: BlockingCalls,
    own: Intervals,
    start: Times,
    end: Times,
) -> Times:
    """Return the time of each restart gap of a device that counts as idle_in_wait of a call."""
    inside = np.zeros(len(start), np.int64)
    groups = {gpus[process].group for process in _processes(trace, device)}
    for process, used in gpus.items():
        if used.group in groups and len(start):
            some = np.flatnonzero((calls.process == process) & (own.end > own.start))
            pieces = intervals.parts_in_queries(Intervals(own.start[some], own.end[some]), start, end)
            lost, busy = (each.length_between(pieces.start, pieces.end) for each in (used.windows, used.busy))
            np.add.at(inside, pieces.query, lost - busy)
    return inside


def _shares(calls: BlockingCalls, blocked_in_wait: Times, total: Times) -> Times:
    """Share the total of each wait between its calls, in proportion to the time that each blocks the host."""
    order = np.argsort(calls.wait, kind="stable")
    wait, blocked = calls.wait[order], calls.blocked[order]
    running = np.cumsum(blocked)
    first = np.flatnonzero(np.diff(wait, prepend=-1))
    before = (running[first] - blocked[first])[wait]
    whole = np.maximum(blocked_in_wait, 1)[wait]
    until, since = (_scale_exactly(total[wait], ns, whole) for ns in (running - before, running - before - blocked))
    shares = np.empty(len(wait), np.int64)
    shares[order] = until - since
    return shares


def _scale_exactly(total: Times, share: Times, whole: Times) -> Times:
    """Return total * share // whole. The products may overflow; their difference, which corrects a guess, does not."""
    fraction: NDArray[np.float64] = share / whole
    guess = (total * fraction).astype(np.int64)
    rest: Times = total * share - guess * whole
    return guess + np.floor_divide(rest, whole)


MAX_NAMES = 200  # rows; CUDA has a few dozen functions that block
TOTALS = ("blocked", "waited", "starved", "idle_in_wait", "refill", "cost")


def measure_host(trace: Trace, activities: Sequence[Activity]) -> HostUse:
    """Measure explicit synchronizations, and separately the calls that synchronize implicitly."""
    explicit = trace.api["role"].to_physical().to_numpy() == ROLES.index("sync")
    rows = np.flatnonzero(explicit | trace.api["implicit"].to_numpy())
    frame = _measure_calls(trace, rows, activities)
    sync = pl.Series(explicit[frame["api"].to_numpy()], dtype=pl.Boolean)
    return HostUse(sync=_sum_calls(frame.filter(sync)), implicit_sync=_sum_calls(frame.filter(~sync)))


def _measure_calls(trace: Trace, rows: Times, activities: Sequence[Activity]) -> pl.DataFrame:
    """Measure the blocking calls in `rows` of Trace.api that overlap the window."""
    start, end = trace.api["start"].to_numpy()[rows], trace.api["end"].to_numpy()[rows]
    if trace.window is not None:
        inside = overlaps_window(start, end, trace.window)
        rows, start, end = rows[inside], start[inside], end[inside]
        clipped = np.maximum(start, trace.window.start), np.minimum(end, trace.window.end)
    else:
        clipped = start, end
    process = trace.api.select("process")[rows]["process"].to_numpy()
    blocked = clipped[1] - clipped[0]
    calls = BlockingCalls(process, *clipped, end, number_waits(trace, rows), blocked)
    costs = measure_waits(trace, activities, calls)
    return trace.api.select("name", "thread", "process")[rows].with_columns(
        pl.Series("start", calls.start),
        pl.Series("end", calls.end),
        pl.Series("api", rows, dtype=pl.Int64),
        pl.Series("blocked", blocked),
        pl.Series("waited", costs.waited),
        pl.Series("starved", blocked - costs.waited),
        pl.Series("wait", calls.wait),
        pl.Series("returned", costs.returned),
        pl.Series("idle_in_wait", costs.idle_in_wait),
        pl.Series("refill", costs.refill),
        pl.Series("cost", costs.cost),
    )


def _sum_calls(frame: pl.DataFrame) -> SyncUse:
    sums = [pl.col(name).sum() for name in TOTALS]
    calls = (
        frame.group_by(pl.col("name").cast(pl.String))
        .agg(pl.len().alias("count"), *sums)
        .sort(["blocked", "name"], descending=[True, False])
    )
    totals = {f"{name}_ns": int(frame[name].sum()) for name in TOTALS}
    rows = [ApiTotal(*row) for row in calls[:MAX_NAMES].iter_rows()]
    if len(others := calls[MAX_NAMES:]):
        rows.append(ApiTotal(f"({len(others)} other calls)", *others.select(pl.exclude("name").sum()).row(0)))
    return SyncUse(len(frame), **totals, calls=tuple(rows), frame=frame)


def _calls_table(name: str, title: str, note: str) -> Table:
    shown = ("api", "count", "blocked_ns", "starved_ns", "refill_ns", "cost_ns", "waited_ns")
    return Table(name=name, title=title, note=note, row_type=ApiTotal, shown=shown, in_json=False)


SYNC_CALLS = Measure(
    _calls_table("sync_calls", "Synchronizations", "Only the time in which the GPU is idle counts as cost."),
    lambda given: given.host.sync.calls,
    "capture",
)
IMPLICIT_CALLS = Measure(
    _calls_table(
        "implicit_sync_calls", "Implicitly synchronizing calls", "Copies with pageable memory, allocation and free."
    ),
    lambda given: given.host.implicit_sync.calls,
    "capture",
)
