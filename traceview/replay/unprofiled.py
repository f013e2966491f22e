"""The time of an iteration without the profiler, and the profiler's share of each device's idle time.

Both come from two replays of some iterations, as captured and without what the profiler adds (docs/unprofiled.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from traceview.intervals import Times
from traceview.measure.activity import Activity, device_activity
from traceview.measure.gaps import ThreadStates, attribute
from traceview.model.analysis import CAUSES, Analysis, DeviceFigures, DeviceUse, Iterations
from traceview.model.trace import Note, Trace
from traceview.model.unprofiled import Bounds, ProfilerCosts, UnprofiledTime
from traceview.read import raw
from traceview.replay.build import build
from traceview.replay.constants import CAPTURE_NOISE
from traceview.replay.graph import Codes, DependencyGraph, Replay, UnfitGraphError, replay
from traceview.replay.profiler_costs import MIDDLE, TracedEvents, host_slowdown, traced_events, without_profiler
from traceview.replay.select import LaunchedWork, Selection, select

MAX_OPERATIONS = 2_000  # in the graph of an analysis; that of `whatif` is larger
MAX_ERROR = 0.25  # share of the measured time; iterations that differ by more do not represent the run
MAX_SCALE = 8.0  # largest scale of the costs that is tried to meet a given time
STEPS = 12  # steps of the search for that scale
# Events that nsys records besides CUDA and NVTX. Its costs are known without these, so its calls may cost more.
OTHER_EVENTS = (raw.SYSTEM_CALLS, raw.CPU_SAMPLES, raw.SCHEDULING, raw.CUDA_STACKS)
OTHER_FACTOR = 2.0  # factor of the upper bound of the costs where these are recorded
# How much of the slowdown other runs lack, as exponents: a third of it, most, all.
SLOW_HOST = Bounds(0.35, 0.7, 1.0)
# Factor by which the host's time differs between runs, and where PyTorch's DataLoader has threads of these names.
HOST_SPREAD, LOADER_SPREAD, LOADER_THREADS = 1.05, 1.15, "^pt_data"
# Idle time of these causes is the host's; the rest of a gap is the GPU's own.
HOST_CAUSES = tuple(CAUSES.index(name) for name in CAUSES if name not in ("queued", "unknown"))
QUEUED = CAUSES.index("queued")


def estimate_unprofiled(
    analysis: Analysis, costs: ProfilerCosts, given_ns: int | None = None, work: LaunchedWork | None = None
) -> tuple[UnprofiledTime | None, tuple[Note, ...]]:
    """Return the time of an iteration without the profiler, and notes on how well it is known.

    `given_ns` is a time measured without the profiler; the costs are then scaled to give this time. `work` saves
    collecting the work of the iterations again. The time is None without iterations, if their graph does not represent
    the run, or for profilers other than nsys without a given time.
    """
    iterations = analysis.iterations
    if not isinstance(iterations, Iterations):
        return None, ()
    if analysis.info.profiler != "nsys":
        given = None if given_ns is None else UnprofiledTime(given_ns, given_ns, given_ns, "given", costs.scaled(0))
        return given, ()
    others = any(analysis.info.tables.get(table) for table in OTHER_EVENTS)
    if others:
        costs = replace(costs, scale=costs.scale._replace(high=OTHER_FACTOR * costs.scale.high))
    loader = analysis.trace.threads["name"].str.contains(LOADER_THREADS).any()
    spread = LOADER_SPREAD if loader else HOST_SPREAD
    time = _unprofiled_time(analysis, iterations.time_ns, costs, given_ns, work, spread)
    if time is None or given_ns is not None:
        return time, ()
    reasons = (
        (others, "nsys recorded more than CUDA calls and ranges (system calls, CPU samples, scheduling or stacks). How "
        "much this slows calls down is unknown"),
        (loader, "What a DataLoader's processes give differs more from run to run than one run shows"),
    )  # fmt: skip
    texts = (f"{reason}, so the range of the time without the profiler is wider." for holds, reason in reasons if holds)
    return time, tuple(Note("unprofiled_range", text, affects=("iterations.unprofiled",)) for text in texts)


def with_unprofiled(analysis: Analysis, time: UnprofiledTime | None, notes: Sequence[Note] = ()) -> Analysis:
    """Return the analysis with the time of an iteration without the profiler, and its share of each device's idle time.

    It is the same without iterations.
    """
    if not isinstance(analysis.iterations, Iterations):
        return analysis
    shares = {} if time is None else time.shares
    fraction = 0.0 if time is None else max(1 - time.mean_ns / max(analysis.iterations.time_ns, 1), 0.0)
    devices = (_with_profiler_share(device, shares.get(device.device), fraction) for device in analysis.devices)
    return replace(
        analysis,
        notes=(*analysis.notes, *notes),
        iterations=replace(analysis.iterations, unprofiled=time),
        devices=tuple(devices),
    )


def _unprofiled_time(
    analysis: Analysis,
    measured_ns: int,
    costs: ProfilerCosts,
    given_ns: int | None,
    work: LaunchedWork | None,
    spread: float,
) -> UnprofiledTime | None:
    selection = select(analysis, MAX_OPERATIONS, work)
    if isinstance(selection, str):
        return None
    trace = analysis.trace
    graph = build(trace, selection)
    events, slowdown = traced_events(trace, graph), host_slowdown(trace, selection.work.process)
    try:
        base = replay(graph)
        # Shorter iterations stand for the run too: the rest of the mean is host time, for example a checkpoint.
        if base.per_iteration > (1 + MAX_ERROR) * selection.measured_ns:
            return None
        if given_ns is not None:
            costs = _scaled_to(trace, graph, events, base, costs, measured_ns - given_ns)
        alone = replay(without_profiler(trace, graph, events, costs))
        hosts = [slowdown**share * factor for share, factor in zip(SLOW_HOST, (1 / spread, 1, spread), strict=True)]
        replays = [
            replay(without_profiler(trace, graph, events, costs, bound, host))
            if (bound, host) != (MIDDLE, 1)
            else alone
            for bound, host in enumerate(hosts if given_ns is None else ())
        ]
    except UnfitGraphError:
        return None
    threads = ThreadStates.from_trace(trace)
    shares = _shares_of_others(analysis, threads, selection, costs)
    shares |= _shares_of_process(analysis, threads, graph, base, alone)
    if given_ns is not None:
        return UnprofiledTime(given_ns, given_ns, given_ns, "given", costs, shares)
    high, middle, low = (measured_ns + run.per_iteration - base.per_iteration for run in replays)
    middle = max(min(middle, measured_ns), 1)
    low, high = max(int(min(low, middle) * (1 - CAPTURE_NOISE)), 1), int(max(high, middle) * (1 + CAPTURE_NOISE))
    return UnprofiledTime(middle, low, high, "estimate", costs, shares, hosts[MIDDLE])


def _shares_of_process(
    analysis: Analysis, threads: ThreadStates, graph: DependencyGraph, base: Replay, run: Replay
) -> dict[int, Mapping[str, float]]:
    """Return the shares of UnprofiledTime for the devices that a graph's process uses."""
    used = np.unique(graph.operations.device)
    works = (device_activity(analysis.trace, use.device) for use in analysis.devices if use.device in used)
    return {work.device: _idle_shares(analysis.trace, threads, work, graph, base, run) for work in works if work}


def _shares_of_others(
    analysis: Analysis, threads: ThreadStates, selection: Selection, costs: ProfilerCosts
) -> dict[int, Mapping[str, float]]:
    """Return the shares of UnprofiledTime for the devices of other processes, each from its own process's calls."""
    others = {process for use in analysis.devices for process in use.process_ids} - {selection.work.process}
    shares: dict[int, Mapping[str, float]] = {}
    for process in sorted(others):
        other = select(analysis, MAX_OPERATIONS // len(others), LaunchedWork.from_analysis(analysis, process))
        if isinstance(other, str):
            continue
        graph = build(analysis.trace, other)
        events = traced_events(analysis.trace, graph)
        try:
            base = replay(graph)
            run = replay(without_profiler(analysis.trace, graph, events, costs))
        except UnfitGraphError:
            continue
        if base.per_iteration <= (1 + MAX_ERROR) * other.measured_ns:
            shares |= _shares_of_process(analysis, threads, graph, base, run)
    return shares


def _scaled_to(
    trace: Trace, graph: DependencyGraph, events: TracedEvents, base: Replay, costs: ProfilerCosts, saved_ns: int
) -> ProfilerCosts:
    """Return the costs times the factor with which the replay of an iteration becomes shorter by `saved_ns`."""
    low, high = 0.0, MAX_SCALE
    for _ in range(STEPS):
        middle = (low + high) / 2
        run = replay(without_profiler(trace, graph, events, costs.scaled(middle)))
        low, high = (middle, high) if base.per_iteration - run.per_iteration < saved_ns else (low, middle)
    return costs.scaled(low)


def _idle_shares(
    trace: Trace, threads: ThreadStates, work: Activity, graph: DependencyGraph, base: Replay, run: Replay
) -> Mapping[str, float]:
    """Return the fraction of a device's idle time of each cause that a run without the profiler does not have.

    A gap loses the host's time first, in proportion to its causes, then the GPU's own.
    """
    ops, (gaps, ending) = graph.operations, work.idle_gaps()
    counted = np.flatnonzero((ops.device == work.device) & (ops.iteration >= graph.first))
    if not len(counted) or not len(ending):
        return {}
    removed = np.maximum(_idle_before(graph, base, counted) - _idle_before(graph, run, counted), 0)
    known = ending[: len(ending) - int(ending[-1] < 0)]  # only the last gap can end without an operation
    place = np.searchsorted(known, ops.row[counted])
    ends_gap = known.take(place, mode="clip") == ops.row[counted] if len(known) else np.zeros(len(counted), np.bool_)
    rows, removed = place[ends_gap], removed[ends_gap]
    causes = np.array(attribute(trace, threads, gaps.start[rows], gaps.end[rows], ending[rows]), np.float64)
    host = causes[list(HOST_CAUSES)]
    fraction = np.minimum(removed / np.maximum(host.sum(axis=0), 1), 1)
    taken = np.zeros(len(CAUSES))
    taken[list(HOST_CAUSES)] = (host * fraction).sum(axis=1)
    taken[QUEUED] = np.minimum(np.maximum(removed - host.sum(axis=0), 0), causes[QUEUED]).sum()
    shares = taken / np.maximum(causes.sum(axis=1), 1)
    return {name: float(share) for name, share in zip(CAUSES, shares, strict=True)}


def _idle_before(graph: DependencyGraph, run: Replay, members: Codes) -> Times:
    """Return the ns before each operation in which none of `members` runs, in a replay."""
    start, end = run.time[graph.starts(members)], run.time[graph.ends(members)]
    order = np.argsort(start, kind="stable")
    until = np.maximum.accumulate(end[order])
    idle = np.zeros(len(members), np.int64)
    idle[order[1:]] = np.maximum(start[order[1:]] - until[:-1], 0)
    return idle


def _with_profiler_share(use: DeviceUse, shares: Mapping[str, float] | None, fraction: float) -> DeviceUse:
    """Return a device with the profiler's share of its idle time; outside the steady part that counts 0.

    `fraction` is the share of an iteration that a run without the profiler lacks. The profiler's idle time adds up to
    this share of the steady part, so that the rest of the steady part lasts as long as it does without the profiler.
    """
    if shares is None:
        return use
    steady: DeviceFigures = use.steady
    idle = np.array([steady.gaps.causes[cause] for cause in CAUSES], np.float64)
    lost = idle * [shares.get(cause, 0.0) for cause in CAUSES]
    target = fraction * steady.window.length
    lost = np.minimum(lost * (target / max(lost.sum(), 1.0)), idle)
    host = np.isin(np.arange(len(CAUSES)), HOST_CAUSES)
    rest = np.where(host, idle - lost, 0.0)  # where shares fall short, the host's idle time loses in proportion
    lost += rest * min(max(target - lost.sum(), 0.0) / max(rest.sum(), 1.0), 1.0)
    profiler = dict(zip(CAUSES, map(int, lost), strict=True))
    return replace(
        use,
        gaps=replace(use.gaps, profiler=profiler),
        steady=replace(steady, gaps=replace(steady.gaps, profiler=profiler)),
    )
