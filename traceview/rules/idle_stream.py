"""A stream that was made and does nothing, or next to nothing.

Symptom: a stream takes part in every step and carries less than a hundredth of the device's compute.
Cause: mostly this: PyTorch's autograd runs each backward operation on the stream of its forward operation, so
`with torch.cuda.stream(backward_stream): loss.backward()` moves nothing but the first gradient.
Remedy: remove the stream and its events; overlap what can overlap (copies, communication, independent
branches).

Where the capture shows the cause, this is a premise: the program does not do what its author believes, and
advice for the streams as they are meant would be wrong. Claims the idle cause `queued` of gaps
that end with this stream's operation or with the one right after it: what handing over to and fro costs.
Streams that only copy or communicate, and those used less than once in two iterations, are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Times
from traceview.model.analysis import Place, StreamUse
from traceview.pricing.base import DeviceFacts, Draft, Facts
from traceview.pricing.format import duration, listed, many, share
from traceview.pricing.ledger import Idle

LITTLE = 0.01
FEW = 3
NO_STREAM = 0xFFFFFFFF  # what CUPTI writes where a record names no stream
ADVICE = (
    "Forward and backward of one step depend on each other, so two streams could not overlap them "
    "anyway. Remove the stream, its waits and `record_stream` calls. Streams pay where the work is "
    "independent: copies of the next batch, communication, branches of a model. If the branch must "
    "run elsewhere in backward, run its forward there too."
)
CODE = """# with torch.cuda.stream(backward_stream): loss.backward()   <- runs on the forward's stream anyway
loss.backward()"""
UNUSED_ADVICE = (
    "Events are recorded or waited for there and no work of the capture ran there. Remove such a "
    "stream, or issue its work inside `with torch.cuda.stream(...)`; a library's own streams, and "
    "those that work before or after the capture, may stay."
)


@dataclass(frozen=True, slots=True)
class _Autograd:
    """What shows that backward follows forward: a second thread's kernels, on the main thread's stream."""

    thread: str
    count: int
    of: int
    stream: str


def idle_stream(facts: Facts) -> Iterator[Draft]:
    """Yield one finding for each stream that is part of every step and does next to nothing."""
    for device in facts.devices:
        busiest = max(device.use.streams, key=lambda use: use.compute_ns)
        for use in device.use.streams:
            if _next_to_nothing(facts, device, use, busiest):
                yield _draft(facts, device, use, busiest)
        never = _never_used(facts, device)
        if never:
            yield Draft(
                id="unused_stream",
                device=device,
                title=f"{many(len(never), 'stream')} with events or waits and no work at all: "
                f"{listed(never[:5])}",
                advice=UNUSED_ADVICE,
                severity="low",
            )


def _next_to_nothing(facts: Facts, device: DeviceFacts, use: StreamUse, busiest: StreamUse) -> bool:
    often = max(FEW, (facts.counted or 0) / 2)
    return (
        use.kernel_count >= often
        and use.copy_count == 0
        and use.communication_ns == 0
        and use.process_id == busiest.process_id
        and use.busy_ns < LITTLE * device.use.compute_ns
    )


def _draft(facts: Facts, device: DeviceFacts, use: StreamUse, busiest: StreamUse) -> Draft:
    shown = _autograd(facts, device, busiest)
    why = (
        f"{shown.count:,} of the {shown.of:,} kernels that thread {shown.thread} launched ran on "
        f"{shown.stream}, where the forward ran: autograd runs each backward operation on the stream "
        "of its forward operation. "
        if shown
        else "If it was made for backward: autograd runs each backward operation on the stream of its "
        "forward operation. "
    )
    title = (
        f"{use.label} does next to nothing: {use.kernel_count:,} of {device.use.kernel_count:,} kernels, "
        f"{duration(use.busy_ns)}" + ("; backward runs on the stream of its forward" if shown else "")
    )
    return Draft(
        id="idle_stream",
        device=device,
        title=title,
        advice=f"It carries {share(use.busy_ns, device.use.compute_ns)} of the compute; "
        f"{busiest.label} carries {share(busiest.compute_ns, device.use.compute_ns)}. {why}{ADVICE}",
        code=CODE,
        claims=(Idle(("queued",), rows=_around(facts, device, use)),),
        severity="high" if shown else "medium",
        premise=shown is not None,
        always=True,
        evidence=_places(facts, device, use),
    )


def _autograd(facts: Facts, device: DeviceFacts, busiest: StreamUse) -> _Autograd | None:
    """Return the evidence that another thread's kernels follow the first one's stream, or None."""
    trace = facts.analysis.trace
    work = trace.operations[device.activity.rows].filter(
        (pl.col("source") == "kernel") & (pl.col("class") == "compute") & pl.col("launch").is_not_null()
    )
    thread = trace.api["thread"].to_numpy()[work["launch"].to_numpy()]
    on = (work["stream"] == busiest.stream).to_numpy()
    found = [_share_of(thread, on, int(one)) for one in np.unique(thread)]
    faithful = [one for one in found if one[1] >= (1 - LITTLE) * one[2] and one[2] > FEW]
    others = [one for one in found if one[1] and one not in faithful]
    if not faithful or not others:
        return None
    index, count, of = max(faithful, key=lambda one: one[2])
    return _Autograd(trace.threads["name"][index], count, of, busiest.label)


def _share_of(thread: NDArray[np.int32], on: NDArray[np.bool_], one: int) -> tuple[int, int, int]:
    mine = thread == one
    return one, int((mine & on).sum()), int(mine.sum())


def _around(facts: Facts, device: DeviceFacts, use: StreamUse) -> Times:
    """Return the gaps that end with an operation of this stream, or with the device's next one after it."""
    own = device.column(facts.analysis.trace, "stream") == use.stream
    after = np.concatenate([[False], own[:-1]])
    return device.ended_by(device.activity.rows[own | after])


def _places(facts: Facts, device: DeviceFacts, use: StreamUse) -> tuple[Place, ...]:
    """Return the longest times in which the stream did nothing, between two of its operations."""
    work = device.activity
    rows = np.flatnonzero(device.column(facts.analysis.trace, "stream") == use.stream)
    start, end = work.start[rows], work.end[rows]
    own = intervals.union(start, end, ordered=True)
    frame = pl.DataFrame(intervals.complement(own, int(start[0]), int(end.max()))._asdict())
    longest = frame.with_columns((pl.col("end") - pl.col("start")).alias("length")).sort("length", descending=True)
    return tuple(
        Place(f"{use.label} does nothing for {duration(length)}", start, end, device.use.id, use.stream)
        for start, end, length in longest.head(5).iter_rows()
    )


def _never_used(facts: Facts, device: DeviceFacts) -> list[str]:
    """Return the streams of this device's processes that appear in events alone."""
    trace = facts.analysis.trace
    worked = trace.streams.select("process", "context", "stream_id")
    own_contexts = (
        trace.streams.filter(pl.col("device") == device.use.device).select("process", "context").unique()
    )
    taken_part = trace.stream_events.filter(
        (pl.col("stream_id") != NO_STREAM)
        & (pl.col("stream_id") > 0)
        & (pl.col("kind").cast(pl.String) != "synchronize")
    )
    found = (
        taken_part.join(own_contexts, on=["process", "context"], how="semi")
        .join(worked, on=["process", "context", "stream_id"], how="anti")
        .group_by("process", "context", "stream_id")
        .len()
        .sort("process", "context", "stream_id")
    )
    return [f"stream {stream} ({many(count, 'event')})" for _, _, stream, count in found.iter_rows()]
