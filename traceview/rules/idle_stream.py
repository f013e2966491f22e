"""A stream is part of every step but does almost no work.

Symptom: a stream runs kernels in every step and has less than 1% of the device's compute time.
Cause: mostly autograd. PyTorch runs each backward operation on the stream of its forward operation, so
`with torch.cuda.stream(backward_stream): loss.backward()` moves only the first gradient.
Remedy: remove the stream and its events; use streams for work that can overlap (copies, communication, independent
branches).

Claims the idle cause `queued` of the gaps before this stream's operations and before the operation after each: the cost
of switching to the stream and back. Without a cost it is a note: the program does not do what its author intends. The
rule skips streams that only copy or communicate, and streams used less than once in two iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Times, largest_positions
from traceview.measure.activity import COMMUNICATION, COMPUTE, COPY, KERNEL
from traceview.measure.shared_work import launch_rows
from traceview.model.analysis import DeviceUse
from traceview.model.findings import Place
from traceview.model.rows import StreamUse
from traceview.model.sums import KeyedSums
from traceview.model.trace import Note, Trace
from traceview.model.units import duration, quantity, share
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, Mask, OldRule
from traceview.pricing.claims import Collected, GapGroup, Group, IdleClaim
from traceview.pricing.texts import join_words

MAX_IDLE_SHARE = 0.01
MIN_KERNELS = 3
MAX_PLACES = 5
STREAM_TIME = ("stream", "start", "end")
NO_TIMES = pl.DataFrame(schema=dict.fromkeys(STREAM_TIME, pl.Int64))
NO_KERNELS = pl.DataFrame(schema={"thread": pl.Int64, "stream": pl.Int64, "count": pl.Int64})
NO_STREAM = 0xFFFFFFFF  # the stream id that CUPTI writes if a record has no stream


class _IdleStreamSums(NamedTuple):
    """Streams that may do almost nothing, the threads that launch, and events on streams without work.

    `pauses` has the longest times between two operations of a stream, and `spans` the time of its work in each part of
    the capture (columns stream, start, end); `kernels` the number of kernels by launching thread and stream. `events`
    counts events on streams without work by "process context stream".
    """

    pauses: KeyedSums
    spans: KeyedSums
    kernels: KeyedSums
    events: dict[str, int]


def _collect(part: CapturePart, device: DevicePart) -> Collected[_IdleStreamSums]:
    """Group the gaps that switching to a stream and back can cost, for each stream that does almost nothing."""
    pauses, spans, groups = [NO_TIMES], [NO_TIMES], dict[str, Group]()
    streams = device.column(part.trace, "stream")
    several = (part.trace.streams["device"] == device.row).sum() > 1
    for stream in _without_copies(device, streams) if several else ():
        times = _work_of_stream(device, streams == stream)
        if intervals.length(times) >= MAX_IDLE_SHARE * device.window.length:
            continue  # more than a stream that does almost nothing works in the whole capture
        lengths = times.start[1:] - times.end[:-1]
        longest = largest_positions(lengths, MAX_PLACES)
        pauses.append(_times(stream, times.end[:-1][longest], times.start[1:][longest]))
        spans.append(_times(stream, times.start[:1], times.end[-1:]))
        groups[str(stream)] = GapGroup(_switching_gaps(part.trace, device, stream))
    sums = _IdleStreamSums(
        KeyedSums(pl.concat(pauses), STREAM_TIME),
        KeyedSums(pl.concat(spans), STREAM_TIME),
        KeyedSums.from_rows(_kernels_by_thread(part.trace, device) if several else NO_KERNELS, "thread", "stream"),
        _events_without_work(part.trace, device.row),
    )
    return Collected(sums, groups)


def _without_copies(device: DevicePart, streams: NDArray[np.integer[Any]]) -> list[int]:
    """Return the streams that neither copy nor communicate in a part."""
    codes = device.activity.codes
    counts, others = np.bincount(streams), np.bincount(streams[(codes == COPY) | (codes == COMMUNICATION)])
    counts[np.flatnonzero(others)] = 0
    return np.flatnonzero(counts).tolist()


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


def _work_of_stream(device: DevicePart, members: Mask) -> Intervals:
    rows = np.flatnonzero(members)
    return intervals.union(device.activity.start[rows], device.activity.end[rows], ordered=True)


def _times(stream: int, start: Times, end: Times) -> pl.DataFrame:
    return pl.DataFrame({"stream": np.full(len(start), stream), "start": start, "end": end}, NO_TIMES.schema)


def _switching_gaps(trace: Trace, device: DevicePart, stream: int) -> Times:
    """Return the gaps before this stream's operations and before the device's next operation after each."""
    streams, rows = trace.operations["stream"].to_numpy(), device.activity.rows
    # The last gap can end with an operation after the steady part.
    last = device.gap_operation[-1:]
    rows = np.append(rows, last[~np.isin(last, rows) & (last >= 0)])
    own = streams[rows] == stream
    chosen = np.zeros(len(streams), np.bool_)
    chosen[rows] = own | np.append(False, own)[:-1]
    return device.gaps_before(chosen)


def _kernels_by_thread(trace: Trace, device: DevicePart) -> pl.DataFrame:
    """Return how many compute kernels each thread launches on each stream, in the order of the first of them."""
    work, operations = device.activity, trace.operations
    source, launch = operations["source"].to_physical().to_numpy(), launch_rows(operations)
    launched = (work.select(source) == KERNEL) & (work.codes == COMPUTE) & (work.select(launch) >= 0)
    rows = work.rows[launched].astype(np.intp)
    key = trace.api["thread"].to_numpy()[launch[rows]].astype(np.int64) * len(trace.streams)
    key += operations["stream"].to_numpy()[rows]
    counts, first = np.bincount(key), np.zeros(int(key.max(initial=0)) + 1, np.int64)
    first[key[::-1]] = np.arange(len(key))[::-1]  # the first of each is written last
    used = np.flatnonzero(counts)
    used = used[np.argsort(first[used])]
    thread, stream = np.divmod(used, max(len(trace.streams), 1))
    return pl.DataFrame({"thread": thread, "stream": stream, "count": counts[used]})


def _events_without_work(trace: Trace, device: int) -> dict[str, int]:
    """Count the events of each stream without work, of the processes that use the device, inside the trace's window.

    An event has no time but that of its call, so events whose calls were lost do not count.
    """
    working = trace.streams.select("process", "context", "stream_id")
    own_contexts = trace.streams.filter(pl.col("device") == device).select("process", "context").unique()
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
        events.join(own_contexts, on=["process", "context"], how="semi")
        .join(working, on=["process", "context", "stream_id"], how="anti")
        .group_by("process", "context", "stream_id")
        .len()
    )
    return {f"{process} {context} {stream}": count for process, context, stream, count in unused.iter_rows()}


def _decide(facts: CaptureFacts, sums: Mapping[int, _IdleStreamSums]) -> Iterator[FindingDraft | Note]:
    """Yield a finding for each stream that does almost nothing, and a note on all streams without work."""
    for device in facts.devices:
        own = sums[device.row]
        unused = _unused_streams(own.events)
        if unused:
            values = {
                "device": device.use.id,
                "streams": quantity(len(unused), "stream"),
                "named": join_words(unused[:5]),
            }
            yield FindingDraft("unused_stream", device, (), values, note_without_cost=True)
        for use, busiest in _idle_streams(facts.counted, device.use):
            yield _draft(facts, device, own, use, busiest)


def _unused_streams(events: Mapping[str, int]) -> list[str]:
    """Return the streams that have events but no work."""
    counts = {tuple(map(int, key.split())): count for key, count in events.items()}
    return [f"stream {stream[2]} ({quantity(counts[stream], 'event')})" for stream in sorted(counts)]


def _draft(
    facts: CaptureFacts, device: DeviceFacts, sums: _IdleStreamSums, use: StreamUse, busiest: StreamUse
) -> FindingDraft:
    may_train = facts.program.kind == "pytorch" and facts.program.training is not False
    follower = _follower(sums.kernels.frame, busiest) if may_train else None
    values = {
        "stream": use.label,
        "kernels": f"{use.kernel_count:,}",
        "all_kernels": f"{device.use.kernel_count:,}",
        "busy": duration(use.busy_ns),
        "part": share(use.busy_ns, device.use.compute_ns),
        "busiest": busiest.label,
        "busiest_part": share(busiest.compute_ns, device.use.compute_ns),
    }
    if follower:
        thread, count, total = follower
        values |= {"thread": facts.thread_name(thread), "count": f"{count:,}", "total": f"{total:,}"}
    return FindingDraft(
        "idle_stream",
        device,
        (IdleClaim(("queued",), str(use.stream)),),
        values,
        "follower" if follower else "",
        key=use.label,
        note_without_cost=True,
        evidence=_longest_pauses(device, sums, use),
    )


def _follower(kernels: pl.DataFrame, busiest: StreamUse) -> tuple[int, int, int] | None:
    """Return the thread whose kernels all run on a stream that another thread also uses, or None.

    The result has the row of the thread, its kernels there, and all its kernels.
    """
    there = pl.col("count").filter(pl.col("stream") == busiest.stream).sum()
    counts = kernels.group_by("thread").agg(there.alias("there"), pl.col("count").sum().alias("all")).sort("thread")
    rows: list[tuple[int, int, int]] = counts.rows()
    followers = [row for row in rows if row[1] >= (1 - MAX_IDLE_SHARE) * row[2] and row[2] > MIN_KERNELS]
    others = [row for row in rows if row[1] and row not in followers]
    return max(followers, key=lambda row: row[2]) if followers and others else None


def _longest_pauses(device: DeviceFacts, sums: _IdleStreamSums, use: StreamUse) -> tuple[Place, ...]:
    """Return the longest times between two operations of the stream, also from one part of the capture to the next."""
    own = pl.col("stream") == use.stream
    pauses = sums.pauses.frame.filter(own).select("start", "end").rows()
    spans = sums.spans.frame.filter(own).select("start", "end").sort("start").rows()
    pauses += [(before[1], after[0]) for before, after in pairwise(spans)]
    longest = sorted(pauses, key=lambda pause: (pause[0] - pause[1], pause[0]))[:MAX_PLACES]
    return tuple(
        Place(f"{use.label} does nothing for {duration(end - start)}", start, end, device.use.id, use.stream)
        for start, end in longest
    )


idle_stream = OldRule("idle_stream", _decide, _collect, place=70)
