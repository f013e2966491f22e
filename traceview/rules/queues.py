"""Rules on GPUs that are idle although work is launched, or without a launch in the capture."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Intervals, Rows, Times, largest_positions, rows_where
from traceview.measure.activity import COMMUNICATION, COMPUTE
from traceview.measure.run import WORKING_ROLES
from traceview.measure.shared_work import codes_of, long_calls
from traceview.measure.stream_order import NO_STREAM
from traceview.model.analysis import CHANGES, DeviceUse
from traceview.model.findings import Place
from traceview.model.rows import StreamUse
from traceview.model.trace import KINDS, Note, Trace, names_match
from traceview.model.units import duration, quantity, share
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, once_per_capture
from traceview.pricing.ledger import GapClaim
from traceview.pricing.texts import join_words
from traceview.rules.captured import GRAPH, is_shared
from traceview.rules.copies import prefetched_case
from traceview.rules.host_bound import SHOWS
from traceview.rules.launches import between

HARDWARE_GAP = 2_000  # ns; from one kernel to the next, 1 to 1.5 µs on an H200
MAX_HARDWARE_GAP = 20_000  # ns; kernels, copies and CUDA graphs need 1 to 10 µs
MIN_SHORT_SHARE = 0.05
MIN_HELD_SHARE = 0.5  # share of the gaps in which one call blocks the host

LATE = "late_start"


def queued_work(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """The GPU is idle although work is already launched.

    Symptom: idle time with the cause `queued`: the launch call has returned and the GPU still does nothing.
    Cause: the GPU's own step from one operation to the next (1 to 10 µs), an operation of another stream or of another
    process that had to end first, or something that the capture lacks. What runs before a gap and its length show
    which.
    Remedy: fewer operations or fewer dependencies; for long gaps, a search for what holds the GPU.

    Claims the idle cause `queued` that is left, in gaps longer than the hardware needs. Short gaps count only where
    they take 5% of the time: then the kernels are too small. After a launch call that returns inside the gap, up to 20
    µs are the latency of the launch (`launch_bound`).
    """
    queued, changes = (device.gaps.frame[name].to_numpy() for name in ("queued", "changes"))
    other_process = changes == CHANGES.index("process")
    other_stream = (changes == CHANGES.index("stream")) & _streams_wait(capture, device)
    late = (queued > MAX_HARDWARE_GAP) & ~other_process
    launched = queued + device.gaps.frame["profiler"].to_numpy() == device.gap_end - device.gap_start
    lost = (queued > 0) & (launched | late | other_process)
    short = lost & (queued <= HARDWARE_GAP)
    if queued[short].sum() < MIN_SHORT_SHARE * device.window.length:
        lost &= ~short
    reasons = {
        "process_wait": other_process,
        "dependency_wait": other_stream & ~late,
        LATE: late,
        "operation_gaps": ~(other_process | other_stream | late),
    }
    for name, chosen in reasons.items():
        rows = rows_where(lost & chosen)
        if len(rows):
            case, values = _late_case(capture, device, rows) if name == LATE else ("", {})
            if name == "operation_gaps":
                case = between(capture.trace, device, rows)
            mean = duration(int(queued[rows].sum()) / len(rows))
            values = {"count": quantity(len(rows), "gap"), "mean": mean, **values}
            yield FindingDraft(name, device, (GapClaim(("queued",), rows),), values, case)


def _streams_wait(capture: MeasuredCapture, device: GpuWork) -> bool:
    """Return whether streams can wait for each other: by events, in a graph, or for the default stream.

    Without these, operations of several streams take turns on an engine of the GPU.
    """
    has_default = any(use.label.endswith("(default)") for use in device.use.streams)
    return has_default or bool(names_match(capture.trace.api["name"], "StreamWait|GraphLaunch").any())


@once_per_capture
def _times_in_calls(capture: MeasuredCapture, processes: tuple[int, ...]) -> dict[str, Intervals]:
    """Return when a thread of some processes is in a long CUDA call, by the call's name.

    Synchronizations and blocking copies do not count: they wait for the GPU, not the GPU for them.
    """
    calls = long_calls(capture.trace.api).filter(
        pl.col("role").is_in(WORKING_ROLES), pl.col("process").is_in(processes)
    )
    return {
        str(name): intervals.union(own["start"].to_numpy(), own["end"].to_numpy())
        for (name,), own in calls.group_by("name", maintain_order=True)
    }


def _late_case(capture: MeasuredCapture, device: GpuWork, gaps: Rows) -> tuple[str, dict[str, str]]:
    """Return the case of work that starts late, and its values; `gaps` are those before it."""
    if is_shared(device.use):
        return "shared", {}
    managed = bool(names_match(capture.trace.api["name"], "Managed").any())
    lost = "work that the profiler lost, " * bool(capture.trace.info.trust.lost)
    lost += "copies inside CUDA graphs, " * bool((device.column("source") == GRAPH).any())
    lacks = {"lacks": f"{lost}other programs{', page migrations' * managed} or work from before the recording"}
    case = "graphics" if names_match(capture.trace.api["name"], SHOWS).any() else ""
    idle = Intervals(device.gap_start[gaps], device.gap_end[gaps])
    calls, whole = _times_in_calls(capture, device.process_ids), intervals.length(idle)
    lengths = {name: intervals.overlap_length(times, idle) for name, times in calls.items()}
    call = max(lengths, key=lambda name: (lengths[name], name), default="")
    ns = lengths.get(call, 0)
    return (
        ("in_call", {"call": call, "call_share": share(ns, whole)}) if ns >= MIN_HELD_SHARE * whole else (case, lacks)
    )


MAX_IDLE_SHARE = 0.01
MIN_KERNELS = 3
MAX_PLACES = 5


def idle_stream(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft | Note]:
    """A stream works in every step but does almost no work.

    Symptom: a stream runs kernels in every step and has less than 1% of the device's compute time.
    Cause: mostly autograd. PyTorch runs each backward operation on the stream of its forward operation, so `with
    torch.cuda.stream(backward_stream): loss.backward()` moves only the first gradient.
    Remedy: remove the stream and its events; use streams for work that can overlap (copies, communication, independent
    branches).

    Claims the idle cause `queued` of the gaps before this stream's operations and before the operation after each: the
    cost of switching to the stream and back. Without a cost it is a note: the program does not do what its author
    intends. The rule skips streams that only copy or communicate, and streams used less than once in two iterations.
    """
    unused = _events_without_work(capture).get(device.row)
    if unused:
        named = [f"stream {stream} ({quantity(count, 'event')})" for stream, count in unused]
        values = {"device": device.id, "streams": quantity(len(named), "stream"), "named": join_words(named[:5])}
        yield FindingDraft("unused_stream", device, (), values, note_without_cost=True)
    for use, busiest in _idle_streams(capture.counted, device.use):
        yield _idle_draft(capture, device, use, busiest)


def _idle_streams(counted: int | None, device: DeviceUse) -> Iterator[tuple[StreamUse, StreamUse]]:
    """Yield each stream of a device that does almost nothing, and the busiest one."""
    # No stream has work in the steady part if the ranges of the iterations lie in idle time.
    by_compute = sorted(device.streams, key=lambda use: -use.compute_ns)
    for busiest, use in zip(by_compute[:1] * len(by_compute), by_compute[1:], strict=False):
        if (
            use.kernel_count >= max(MIN_KERNELS, (counted or 0) / 2)
            and use.copy_count == 0
            and use.communication_ns == 0
            and use.process_id == busiest.process_id
            and use.busy_ns < MAX_IDLE_SHARE * device.compute_ns
        ):
            yield use, busiest


def _switching_gaps(trace: Trace, device: GpuWork, stream: int) -> Times:
    """Return the gaps before this stream's operations and before the device's next operation after each."""
    streams, rows = trace.operations["stream"].to_numpy(), device.activity.rows
    # The last gap can end with an operation after the steady part.
    last = device.gap_operation[-1:]
    rows = np.append(rows, last[~np.isin(last, rows) & (last >= 0)])
    own = streams[rows] == stream
    chosen = np.zeros(len(streams), np.bool_)
    chosen[rows] = own | np.append(False, own)[:-1]
    return device.gaps_before(chosen)


def _follower(capture: MeasuredCapture, device: GpuWork, busiest: StreamUse) -> tuple[int, int, int] | None:
    """Return the thread whose kernels all run on the busiest stream, which another thread also uses, or None.

    The result has the row of the thread, its kernels there, and all its kernels.
    """
    trace, rows = capture.trace, device.activity.rows
    kernels = trace.operations.select("launch", "stream", "source", "class")[rows].filter(
        (pl.col("source") == "kernel") & (pl.col("class") == "compute") & pl.col("launch").is_not_null()
    )
    there = (pl.col("stream") == busiest.stream).sum().cast(pl.Int64).alias("there")
    threads = kernels.with_columns(thread=trace.api["thread"].gather(kernels["launch"]).cast(pl.Int64))
    counts: list[tuple[int, int, int]] = (
        threads.group_by("thread").agg(there, pl.len().cast(pl.Int64)).sort("thread").rows()
    )
    followers = [row for row in counts if row[1] >= (1 - MAX_IDLE_SHARE) * row[2] and row[2] > MIN_KERNELS]
    others = [row for row in counts if row[1] and row not in followers]
    return max(followers, key=lambda row: row[2]) if followers and others else None


@once_per_capture
def _events_without_work(capture: MeasuredCapture) -> dict[int, list[tuple[int, int]]]:
    """Return each stream without work and its number of events inside the trace's window, by device.

    The time of an event is that of its call. Events whose calls were lost do not count.
    """
    trace, stream = capture.trace, ["process", "context", "stream_id"]
    contexts = trace.streams.select("device", "process", "context").unique()
    events = trace.stream_events.filter(
        pl.col("launch").is_not_null()
        & (pl.col("stream_id") != NO_STREAM)
        & (pl.col("stream_id") > 0)
        & (pl.col("kind").cast(pl.String) != "synchronize")
    )
    if trace.window is not None:
        starts = trace.api["start"].gather(events["launch"])
        events = events.filter(starts.is_between(trace.window.start, trace.window.end, closed="left"))
    unused = (
        events.join(trace.streams, on=stream, how="anti")
        .group_by(stream)
        .len()
        .sort(stream)
        .join(contexts, on=["process", "context"], maintain_order="left")
    )
    return {device: own.select("stream_id", "len").rows() for (device,), own in unused.group_by("device")}


def _idle_draft(capture: MeasuredCapture, device: GpuWork, use: StreamUse, busiest: StreamUse) -> FindingDraft:
    may_train = capture.program.kind == "pytorch" and capture.program.training is not False
    follower = _follower(capture, device, busiest) if may_train else None
    values = {
        "stream": use.label,
        "kernels": f"{use.kernel_count:,}",
        "all_kernels": f"{device.use.kernel_count:,}",
        "busy": duration(use.busy_ns),
        "compute_share": share(use.busy_ns, device.use.compute_ns),
        "busiest": busiest.label,
        "busiest_share": share(busiest.compute_ns, device.use.compute_ns),
    }
    if follower:
        thread, count, total = follower
        values |= {"thread": capture.thread_name(thread), "count": f"{count:,}", "total": f"{total:,}"}
    return FindingDraft(
        "idle_stream",
        device,
        (GapClaim(("queued",), _switching_gaps(capture.trace, device, use.stream)),),
        values,
        "follower" if follower else "",
        key=use.label,
        note_without_cost=True,
        evidence=_longest_pauses(capture.trace, device, use),
    )


def _longest_pauses(trace: Trace, device: GpuWork, use: StreamUse) -> tuple[Place, ...]:
    """Return the longest times between two operations of the stream."""
    rows = np.flatnonzero(device.column("stream") == use.stream)
    times = intervals.union(device.activity.start[rows], device.activity.end[rows], ordered=True)
    start, end = times.end[:-1], times.start[1:]
    return tuple(
        Place(
            f"{use.label} does nothing for {duration(end[at] - start[at])}",
            int(start[at]),
            int(end[at]),
            device.id,
            use.stream,
        )
        for at in largest_positions(end - start, MAX_PLACES)
    )


MIGRATIONS = [number for number, kind in enumerate(KINDS) if kind.startswith("um_")]
MAX_FAULT = 1_000_000  # ns


def unknown_launch(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """The GPU is idle before work whose launch is not in the capture.

    Symptom: idle time with the cause `unknown`.
    Cause: a migration of managed memory, which no call launches: the host touches its pages. A migration moves at most
    2 MB, which the host reads or fills within MAX_FAULT; in a longer gap it works before it touches the memory. After
    the last kernel the GPU waits for nothing: the host reads results. Otherwise the export is a slice or has no API
    calls.
    Remedy: for managed memory, copies of whole arrays instead of migrations, or less work of the host. Otherwise
    capture whole steps with `-t cuda,nvtx`; this is information.

    Claims the idle cause `unknown`.
    """
    if device.use.gaps.causes["unknown"] == 0:
        return
    kind = codes_of(capture.trace.operations, "kind")
    ended = np.flatnonzero((device.gap_operation >= 0) & np.isin(kind[device.gap_operation], MIGRATIONS))
    at_end = device.gap_start[ended] >= _last_kernel_end(capture.trace, device)
    results = GapClaim(("unknown",), ended[at_end])
    yield FindingDraft("managed_wait", device, (results,), {}, "results", key="results")
    ended = ended[~at_end]
    long = device.gap_end[ended] - device.gap_start[ended] > MAX_FAULT
    yield FindingDraft("managed_wait", device, (GapClaim(("unknown",), ended[~long]),), {}, prefetched_case(capture))
    host = GapClaim(("unknown",), ended[long])
    yield FindingDraft("host_bound", device, (host,), {}, "managed", key="migrations")
    yield FindingDraft("unknown_launch", device, (GapClaim(("unknown",)),))


def _last_kernel_end(trace: Trace, device: GpuWork) -> int:
    """Return when the last kernel of a device ends, inside and outside the time that findings cover."""
    classes = codes_of(trace.operations, "class")
    own = (trace.operations["device"].to_numpy() == device.row) & np.isin(classes, (COMPUTE, COMMUNICATION))
    return int(trace.operations["end"].to_numpy()[own].max(initial=0))
