"""A rank's communication kernels, in the order in which they were launched."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION, Activity
from traceview.model.fleet import Channel, Collectives
from traceview.model.trace import Trace

# What NCCL calls its kernels: ncclDevKernel_AllReduce_Sum_f32_RING_LL, ncclKernel_AllReduce_RING_LL_Sum_float.
KERNEL = re.compile(r"(?:nccl|rccl)(?:Dev)?Kernel_([A-Za-z]+)", re.IGNORECASE)
BEFORE_ALL = -(1 << 62)  # the step of what was launched before the first iteration
MOST = 10_000  # collectives kept of a rank
EMPTY = np.empty(0, np.int64)


def kind_of(kernel: str) -> str:
    """Return "AllReduce" for ncclDevKernel_AllReduce_Sum_f32_RING_LL; another name stays as it is."""
    found = KERNEL.match(kernel)
    return found[1] if found else kernel[:80]


def collectives_of(trace: Trace, device: Activity, first: Times, number: Times, named: pl.DataFrame) -> Collectives:
    """Return the collectives of one GPU, the first MOST of them.

    `first` are the starts of the rank's iterations, ascending, and `number` their numbers; `named` is what
    payload.communicators found. Where not every kernel's call names its communicator, channels are streams.
    """
    rows = device.rows[device.codes == COMMUNICATION]
    launched, thread = _launches(trace, rows)
    order = np.argsort(launched, kind="stable")
    left_out = max(len(rows) - MOST, 0)
    rows, launched, thread = rows[order][:MOST], launched[order][:MOST], thread[order][:MOST]
    operations = trace.operations
    start, end = (operations[name].to_numpy()[rows] for name in ("start", "end"))
    names = operations["name"].gather(rows).cast(pl.String)
    kinds = sorted({kind_of(name) for name in names.unique()})
    kind = np.array([kinds.index(kind_of(name)) for name in names], np.int64)
    channels, channel = _channels(trace, rows, launched, thread, named)
    step = np.concatenate([np.array([BEFORE_ALL], np.int64), number])[np.searchsorted(first, launched, side="right")]
    return Collectives(
        kinds=tuple(kinds),
        channels=channels,
        start=start.astype(np.int64),
        end=end.astype(np.int64),
        hidden=intervals.covered_length(device.compute, start, end),
        step=step,
        kind=kind,
        channel=channel,
        left_out=left_out,
    )


def _launches(trace: Trace, rows: Times) -> tuple[Times, Times]:
    """Return when each kernel's launch call began, and the thread that made it; its own start and -1 without one."""
    launch = trace.operations["launch"].gather(rows)
    known = launch.is_not_null().to_numpy()
    at = launch.fill_null(0).to_numpy()
    start = trace.operations["start"].to_numpy()[rows]
    if not known.any():
        return start, np.full(len(rows), -1, np.int64)
    calls, threads = (trace.api[name].to_numpy() for name in ("start", "thread"))
    return np.where(known, calls[at], start), np.where(known, threads[at], -1).astype(np.int64)


def _channels(
    trace: Trace, rows: Times, launched: Times, thread: Times, named: pl.DataFrame
) -> tuple[tuple[Channel, ...], Times]:
    streams = trace.operations["stream"].to_numpy()[rows]
    ids = trace.streams["stream_id"].to_numpy()
    names = _communicators(trace, launched, thread, named)
    if names is None:
        found = np.unique(streams)
        return tuple(Channel(None, int(ids[one])) for one in found), np.searchsorted(found, streams).astype(np.int64)
    known = sorted(set(names))
    place = {name: index for index, name in enumerate(known)}
    channel = np.array([place[name] for name in names], np.int64)
    # A communicator may use several streams; the first stands for it.
    return tuple(Channel(name, int(ids[streams[channel == place[name]][0]])) for name in known), channel


def _communicators(trace: Trace, launched: Times, thread: Times, named: pl.DataFrame) -> list[str] | None:
    """Return the communicator of each kernel: that of the last NCCL call its thread began before the launch.

    A group of calls launches at its end, so it is its last call that names it. None where one is not known.
    """
    if named.is_empty() or len(launched) == 0 or (thread < 0).any():
        return None
    threads = (
        trace.threads.select("process", "tid").with_row_index("thread").with_columns(pl.col("thread").cast(pl.Int64))
    )
    calls = named.join(threads, on=["process", "tid"]).select("start", "thread", "communicator").sort("start")
    asked = pl.DataFrame({"start": launched, "thread": thread}).with_row_index("row").sort("start")
    found = asked.join_asof(calls, on="start", by="thread", strategy="backward", check_sortedness=False).sort("row")
    return None if found["communicator"].null_count() else found["communicator"].to_list()
