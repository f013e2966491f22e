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

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import polars as pl

from traceview import intervals
from traceview.frozen import frozen
from traceview.intervals import Intervals, Times
from traceview.model.findings import Place
from traceview.model.program import Program
from traceview.model.rows import StreamUse
from traceview.model.trace import Note, Trace
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.figures import join_words, largest_positions
from traceview.pricing.ledger import IdleClaim
from traceview.pricing.sums import Counts
from traceview.rules.advice.launches import IDLE_STREAM, UNUSED_STREAM
from traceview.units import duration, quantity, share

MAX_IDLE_SHARE = 0.01
MIN_KERNELS = 3
MAX_PLACES = 5
EVENTS_WITHOUT_WORK = "events without work"  # a sum of RuleSums
NO_STREAM = 0xFFFFFFFF  # the stream id that CUPTI writes if a record has no stream


@frozen
class _AutogradEvidence:
    """`count` of the `total` kernels that `thread` launches run on `stream`, although the forward thread is another."""

    thread: str
    count: int
    total: int
    stream: str


def idle_stream(facts: CaptureFacts) -> Iterator[FindingDraft | Note]:
    """Yield a finding for each stream that does almost nothing, and a note on all streams without work."""
    for device in facts.devices:
        # No stream has work in the steady part if the ranges of the iterations lie in idle time.
        busiest_first = sorted(device.use.streams, key=lambda use: -use.compute_ns)
        for use in busiest_first[1:]:
            if _is_nearly_idle(facts, device, use, busiest_first[0]):
                yield _draft(facts, device, use, busiest_first[0])
        unused = _unused_streams(facts, device)
        if unused:
            yield Note(
                "unused_stream",
                f"{device.use.id}: {quantity(len(unused), 'stream')} with events or waits but without work: "
                f"{join_words(unused[:5])}. {UNUSED_STREAM.choose(facts.program).advice}",
            )


def _is_nearly_idle(facts: CaptureFacts, device: DeviceFacts, use: StreamUse, busiest: StreamUse) -> bool:
    return (
        use.kernel_count >= max(MIN_KERNELS, (facts.counted or 0) / 2)
        and use.copy_count == 0
        and use.communication_ns == 0
        and use.process_id == busiest.process_id
        and use.busy_ns < MAX_IDLE_SHARE * device.use.compute_ns
    )


def _draft(facts: CaptureFacts, device: DeviceFacts, use: StreamUse, busiest: StreamUse) -> FindingDraft:
    fix, trains = IDLE_STREAM.choose(facts.program), _may_train(facts.program)
    autograd = _autograd_evidence(facts, device, busiest) if trains else None
    if autograd:
        why = (
            f"Autograd runs each backward operation on the stream of its forward operation: {autograd.count:,} of "
            f"the {autograd.total:,} kernels that thread {autograd.thread} launched ran on {autograd.stream}, the "
            "stream of the forward pass. "
        )
    elif trains:
        why = (
            "If the stream is meant for backward: autograd runs each backward operation on the stream of its "
            "forward operation. "
        )
    else:
        why = ""
    return FindingDraft(
        id="idle_stream",
        device=device,
        title=f"{use.label} is almost unused: {use.kernel_count:,} of {device.use.kernel_count:,} kernels, "
        f"{duration(use.busy_ns)}" + ("; backward runs on the stream of its forward" if autograd else ""),
        advice=f"It has {share(use.busy_ns, device.use.compute_ns)} of the compute time; "
        f"{busiest.label} has {share(busiest.compute_ns, device.use.compute_ns)}. {why}{fix.advice}",
        code=fix.code,
        claims=(IdleClaim(("queued",), rows=_switching_gaps(facts, device, use)),),
        key=use.label,
        note_without_cost=True,
        evidence=_longest_pauses(facts, device, use),
    )


def _may_train(program: Program) -> bool:
    return program.kind == "pytorch" and program.training is not False


def _autograd_evidence(facts: CaptureFacts, device: DeviceFacts, busiest: StreamUse) -> _AutogradEvidence | None:
    """Return the thread whose kernels all run on a stream that another thread also uses, or None."""
    trace = facts.analysis.trace
    work = trace.operations[device.activity.rows].filter(
        (pl.col("source") == "kernel") & (pl.col("class") == "compute") & pl.col("launch").is_not_null()
    )
    thread = trace.api["thread"].to_numpy()[work["launch"].to_numpy()].astype(np.int64)
    on_busiest = (work["stream"] == busiest.stream).to_numpy()
    launched = device.shown(f"kernels by thread {busiest.label}", Counts.from_values(thread))
    there = device.shown(f"busiest stream by thread {busiest.label}", Counts.from_values(thread[on_busiest]))
    inside = dict(zip(*(column.tolist() for column in there), strict=True))
    every = zip(*(column.tolist() for column in launched), strict=True)
    counts = [(index, inside.get(index, 0), total) for index, total in every]
    followers = [row for row in counts if row[1] >= (1 - MAX_IDLE_SHARE) * row[2] and row[2] > MIN_KERNELS]
    others = [row for row in counts if row[1] and row not in followers]
    if not followers or not others:
        return None
    index, count, total = max(followers, key=lambda row: row[2])
    return _AutogradEvidence(facts.thread_name(index), count, total, busiest.label)


def _switching_gaps(facts: CaptureFacts, device: DeviceFacts, use: StreamUse) -> Times:
    """Return the gaps before this stream's operations and before the device's next operation after each."""
    own = device.column(facts.analysis.trace, "stream") == use.stream
    before = facts.analysis.trace.operations["stream"][device.previous] if device.previous >= 0 else -1
    after = np.concatenate([[before == use.stream], own[:-1]]) if len(own) else own
    return device.gaps_before(device.activity.rows[own | after])


def _longest_pauses(facts: CaptureFacts, device: DeviceFacts, use: StreamUse) -> tuple[Place, ...]:
    """Return the longest times between two operations of the stream."""
    work = device.activity
    rows = np.flatnonzero(device.column(facts.analysis.trace, "stream") == use.stream)
    start, end = work.start[rows], work.end[rows]
    own = intervals.union(start, end, ordered=True)
    pauses = Intervals(own.end[:-1], own.start[1:])
    longest = largest_positions(pauses.end - pauses.start, MAX_PLACES)
    ends = {str(pauses.start[at]): int(pauses.end[at]) for at in longest}
    ends = device.shown(f"pauses of {use.label}", ends)
    # The stream also pauses from one slice of the capture to the next.
    spans = device.shown(f"work of {use.label}", {str(own.start[0]): int(own.end[-1])} if len(rows) else {})
    between = pairwise(sorted((int(begin), until) for begin, until in spans.items()))
    every = [*((int(begin), until) for begin, until in ends.items()), *((last[1], after[0]) for last, after in between)]
    every.sort(key=lambda pause: (pause[0] - pause[1], pause[0]))
    return tuple(
        Place(f"{use.label} does nothing for {duration(end - start)}", start, end, device.use.id, use.stream)
        for start, end in every[:MAX_PLACES]
    )


def _unused_streams(facts: CaptureFacts, device: DeviceFacts) -> list[str]:
    """Return the streams of this device's processes that have events but no work."""
    own = events_without_work(facts.analysis.trace, device.use.device, own=device.totals.in_parts)
    every = {tuple(map(int, key.split())): count for key, count in device.total(EVENTS_WITHOUT_WORK, own).items()}
    return [f"stream {stream[2]} ({quantity(every[stream], 'event')})" for stream in sorted(every)]


def events_without_work(trace: Trace, device: int, *, own: bool) -> dict[str, int]:
    """Count the events of each stream without work; the key names the process, the context and the stream.

    The streams are those of the processes that use `device`. `own` counts only events inside the trace's window: a
    slice also has calls of its neighbours.
    """
    working = trace.streams.select("process", "context", "stream_id")
    own_contexts = trace.streams.filter(pl.col("device") == device).select("process", "context").unique()
    events = trace.stream_events.filter(
        (pl.col("stream_id") != NO_STREAM)
        & (pl.col("stream_id") > 0)
        & (pl.col("kind").cast(pl.String) != "synchronize")
    )
    if own and trace.window is not None:
        starts = trace.api["start"].gather(events["launch"])
        events = events.filter(starts.is_between(trace.window.start, trace.window.end, closed="left"))
    unused = (
        events.join(own_contexts, on=["process", "context"], how="semi")
        .join(working, on=["process", "context", "stream_id"], how="anti")
        .group_by("process", "context", "stream_id")
        .len()
    )
    return {f"{process} {context} {stream}": count for process, context, stream, count in unused.iter_rows()}
