"""The order of operations on the streams of a device, and what they wait for by events.

An operation waits for an event if its stream waits for it after the launch of the stream's previous operation. The
event stands for the last operation that was launched on the recording stream before the record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import BLOCK, Rows, Times, adjoining, is_sorted, sorted_unique, values_at
from traceview.measure.activity import COMMUNICATION, COMPUTE, Activity
from traceview.measure.gaps import clocks_disagree
from traceview.measure.shared_work import codes_of, launch_rows, once_per_trace
from traceview.model.trace import CLASSES, Trace, enum_texts

Mask = NDArray[np.bool_]
Streams = NDArray[np.signedinteger[Any]]
NO_STREAM = 0xFFFFFFFF  # the stream id that CUPTI writes if a record has no stream
# The usual gap is this many medians of the gaps before operations that were launched in time. Beside a copy gaps are
# three times as long as others (samples/trainer/prefetch on an H200: 4.6 µs in place of 1.5).
MEDIANS = 3
DEFAULT_GAP = 5_000  # ns; three medians are 2 to 5 µs on 24 of 30 devices of samples and shared captures
CONTEXT = ["process", "context", "stream_id"]


class StreamWaits(NamedTuple):
    """What operations of a device wait for by events.

    `latest` has for each operation the one that ends last of all that it waits for (a place in StreamOrder), or -1.
    `waits` marks operations that wait for events, `open` those that wait for one whose record or stream the capture
    does not have, and `traced` the streams whose every wait is in the capture.
    """

    latest: Rows
    waits: Mask
    open: Mask
    traced: Mask


class StreamOrder(NamedTuple):
    """All operations of a device that have a length, in the order of `start`, inside and outside the window.

    `row` is their row of Trace.operations, `launch` the row of Trace.api that launched each, -1 if unknown. `previous`
    is the place of the operation before each on its own stream, -1 for none. `ordered` has the places stream by stream,
    and `key` the keys (stream times the number of operations, plus place) of these, ascending. `by_end` has the places
    in the order of their ends, and `ends` these. `candidates` are the operations of computing streams. `together` has
    the pairs of streams (one times their number, plus the computing one) that are seen to work at the same time, and
    `independent` is the column of Trace.streams. `gap` is the usual gap between operations of computing streams, in ns.
    """

    start: Times
    end: Times
    stream: NDArray[np.int16]
    code: NDArray[np.uint8]
    launch: Rows
    row: Rows
    previous: Rows
    ordered: Rows
    key: Times
    by_end: Rows
    ends: Times
    candidates: Rows
    together: Times
    independent: Mask
    gap: int
    waits: StreamWaits

    @classmethod
    def of_device(cls, trace: Trace, work: Activity) -> StreamOrder:
        """Return the order of a device's operations."""
        rows = adjoining(work.nonempty_rows)
        start, end, stream = (trace.operations[name].to_numpy()[rows] for name in ("start", "end", "stream"))
        code = codes_of(trace.operations, "class")[rows]
        launch = launch_rows(trace.operations)[rows]
        if clocks_disagree(trace.devices)[work.device]:
            launch = np.full(len(start), -1, np.int32)
        ordered = np.argsort(stream, kind="stable").astype(np.int32)
        previous, streams = np.empty(len(start), np.int32), stream[ordered]
        previous[ordered[1:]] = np.where(streams[1:] == streams[:-1], ordered[:-1], -1)
        previous[ordered[:1]] = -1
        computing = _computing_streams(start, end, stream, code, len(trace.streams))
        candidates = np.flatnonzero(computing[stream]).astype(np.int32)
        by_end, ends = np.arange(len(end), dtype=np.int32), end
        if not is_sorted(end):
            by_end = np.argsort(end, kind="stable").astype(np.int32)
            ends = end[by_end]
        others = code != COMPUTE if np.count_nonzero(computing) > 1 else ~computing[stream]
        return cls(
            start,
            end,
            stream,
            code,
            launch,
            work.nonempty_rows,
            previous,
            ordered,
            streams.astype(np.int64) * len(start) + ordered,
            by_end,
            ends,
            candidates,
            _pairs_together(start, end, stream, candidates, np.flatnonzero(others), len(trace.streams)),
            trace.streams["independent"].to_numpy(),
            _usual_gap(trace, start, end, launch, previous, candidates),
            _stream_waits(trace, stream, launch, end, ordered),
        )

    def before(self, stream: Streams, place: Rows) -> Rows:
        """Return the place of the last operation of each stream that starts before the operation at `place`; -1."""
        at = np.searchsorted(self.key, stream.astype(np.int64) * len(self.start) + place) - 1
        last = values_at(self.ordered, at, -1)
        return np.where(values_at(self.stream, last, -1) == stream, last, -1).astype(np.int32)

    def may_run_beside(self, stream: Streams, computing: Streams) -> Mask:
        """Return whether streams are known to wait for no computing stream without an event.

        They were created so, or they are seen to work at the same time: the default stream and others may wait for each
        other.
        """
        together: Mask = np.isin(stream.astype(np.int64) * len(self.independent) + computing, self.together)
        return together | self.independent[stream] | self.independent[computing]

    def last_ended(self, moments: Times) -> Rows:
        """Return the place of the operation that ends last at or before each moment; -1 for none."""
        return values_at(self.by_end, np.searchsorted(self.ends, moments, side="right") - 1, -1)


def _computing_streams(start: Times, end: Times, stream: Streams, code: NDArray[np.uint8], count: int) -> Mask:
    """Return which streams compute: with at least as much compute as communication, or half of all compute."""
    kinds = np.uint16(len(CLASSES))
    ns = np.bincount(stream.astype(np.uint16) * kinds + code, end - start, count * len(CLASSES)).reshape(count, -1)
    compute = ns[:, COMPUTE]
    computing: Mask = (compute > 0) & ((compute >= ns[:, COMMUNICATION]) | (2 * compute >= compute.sum()))
    return computing


def _usual_gap(trace: Trace, start: Times, end: Times, launch: Rows, previous: Rows, candidates: Rows) -> int:
    """Return the usual gap of computing streams in ns, from at most BLOCK operations at equal distances."""
    after = candidates[:: len(candidates) // BLOCK + 1]
    after = after[(previous[after] >= 0) & (launch[after] >= 0)]
    gap = start[after] - end[previous[after]]
    queued = (trace.api["end"].to_numpy()[launch[after]] < end[previous[after]]) & (gap >= 0)
    return MEDIANS * int(np.median(gap[queued])) if queued.any() else DEFAULT_GAP


def _pairs_together(start: Times, end: Times, stream: Streams, candidates: Rows, others: Times, streams: int) -> Times:
    """Return the pairs of streams that work at the same time: each of `others`, and the last candidate in its time."""
    last = values_at(candidates, np.searchsorted(start[candidates], end[others]) - 1, -1)
    some = (last >= 0) & (values_at(end, last, 0) > start[others]) & (values_at(stream, last, -1) != stream[others])
    return sorted_unique(stream[others[some]].astype(np.int64) * streams + stream[last[some]])


class _EventWaits(NamedTuple):
    """The waits of a capture for events, in the order of their calls.

    `launch` is the call of each, `target` its stream, `recorded` the call of the record before and `source` its stream;
    -1 if unknown. `unstated` are the calls that wait in a stream that the capture does not have, and `traced` the
    streams of processes without such calls.
    """

    launch: Times
    target: Times
    recorded: Times
    source: Times
    unstated: Times
    traced: Mask


@once_per_trace
def _event_waits(trace: Trace) -> _EventWaits:
    calls = _named_calls(trace, "StreamWaitEvent")
    events = trace.stream_events.filter(pl.col("launch").is_not_null()).sort("launch")
    stated = events.filter(pl.col("launch").is_in(calls) & (pl.col("stream_id") != NO_STREAM))
    unstated = np.setdiff1d(calls, stated["launch"].to_numpy())
    untraced = np.unique(trace.api["process"].to_numpy()[unstated])
    rows = trace.streams.select(*CONTEXT, pl.int_range(pl.len()).alias("row"))
    records = events.filter(pl.col("kind") == "record").join(rows, on=CONTEXT, how="left", maintain_order="left")
    event = ["process", "context", "event_id"]
    pairs = (
        stated.join(rows.rename({"row": "target"}), on=CONTEXT, maintain_order="left")
        .join_asof(
            records.select(*event, "launch", source="row", recorded="launch"),
            on="launch",
            by=event,
            check_sortedness=False,
        )
        .select(pl.col("launch", "target", "recorded", "source").cast(pl.Int64).fill_null(-1))
    )
    traced = ~np.isin(trace.streams["process"].to_numpy(), untraced)
    launch, target, recorded, source = (column.to_numpy() for column in pairs)
    return _EventWaits(launch, target, recorded, source, unstated, traced)


def _stream_waits(trace: Trace, stream: NDArray[np.int16], launch: Rows, end: Times, ordered: Rows) -> StreamWaits:
    count, events = len(stream), _event_waits(trace)
    latest, (waits, is_open) = np.full(count, -1, np.int32), np.zeros((2, count), np.bool_)
    if len(events.unstated):
        is_open = _after_unstated_waits(trace, events.unstated, launch)
    if not len(events.launch):
        return StreamWaits(latest, waits, is_open, events.traced)
    base = len(trace.api) + 1
    # Streams keep the order of launches; an operation without a launch has that of the one before.
    key = np.maximum.accumulate(stream[ordered].astype(np.int64) * base + launch[ordered])
    target, recorded, source = events.target, events.recorded, events.source
    at = np.searchsorted(key, target * base + events.launch, side="right")
    waiting = values_at(ordered, np.where(at < count, at, -1), -1)
    waiting[values_at(stream, waiting, -1) != target] = -1
    waits[waiting[waiting >= 0]] = True
    is_open[waiting[(waiting >= 0) & (recorded < 0)]] = True
    awaited = values_at(ordered, np.searchsorted(key, source * base + recorded) - 1, -1)
    known = (waiting >= 0) & (source >= 0) & (source != target)
    known &= (values_at(stream, awaited, -1) == source) & (values_at(launch, awaited, -1) >= 0)
    waiting, awaited, source = waiting[known], awaited[known], source[known]
    order = np.lexsort((source, end[awaited]))
    latest[waiting[order]] = awaited[order]  # NumPy writes the last of several
    return StreamWaits(latest, waits, is_open, events.traced)


def _named_calls(trace: Trace, pattern: str) -> Times:
    """Return the rows of Trace.api whose names match a pattern: few names do, so each is searched alone."""
    name = trace.api["name"].to_physical().to_numpy()
    codes = np.flatnonzero(enum_texts(trace.api["name"]).str.contains(pattern).to_numpy())
    return np.sort(np.concatenate([np.zeros(0, np.int64), *(np.flatnonzero(name == code) for code in codes)]))


def _after_unstated_waits(trace: Trace, calls: Times, launch: Rows) -> Mask:
    """Return which operations a thread launches first after it made one of these calls, whose stream is unknown."""
    thread, base = trace.api["thread"].to_numpy().astype(np.int64), len(trace.api) + 1
    known = np.flatnonzero(launch >= 0)
    key = thread[launch[known]] * base + launch[known]
    by_thread = np.argsort(key, kind="stable")
    at = np.searchsorted(key[by_thread], thread[calls] * base + calls)
    place = values_at(known[by_thread], np.where(at < len(known), at, -1), -1)
    marked = np.zeros(len(launch), np.bool_)
    marked[place[(place >= 0) & (values_at(thread, values_at(launch, place, -1), -1) == thread[calls])]] = True
    return marked
