"""A rank's communication kernels in launch order, and their communicators.

NCCL's NVTX payloads name the communicator, and traces of torch.profiler the process group.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION, Activity
from traceview.model.collectives import Channel, Collectives
from traceview.model.trace import Trace

# NCCL's kernel names: ncclDevKernel_AllReduce_Sum_f32_RING_LL, ncclKernel_AllReduce_RING_LL_Sum_float.
KERNEL = re.compile(r"(?:nccl|rccl)(?:Dev)?Kernel_([A-Za-z]+)", re.IGNORECASE)
BEFORE_ALL = -(1 << 62)  # the step of collectives that were launched before the first iteration
MAX_COLLECTIVES = 10_000  # per rank
EMPTY = np.empty(0, np.int64)


def collective_kind(kernel: str) -> str:
    """Return "AllReduce" for ncclDevKernel_AllReduce_Sum_f32_RING_LL, and other names unchanged."""
    match = KERNEL.match(kernel)
    return match[1] if match else kernel[:80]


def measure_collectives(trace: Trace, device: Activity, begin: Times, numbers: Times) -> Collectives:
    """Return the first MAX_COLLECTIVES collectives of one GPU.

    `begin` are the starts of the rank's iterations, ascending, and `numbers` their numbers. If the
    communicator of a kernel is unknown, streams serve as channels.
    """
    rows = device.rows[device.codes == COMMUNICATION]
    launched, thread = _launch_times_and_threads(trace, rows)
    order = np.argsort(launched, kind="stable")
    left_out = max(len(rows) - MAX_COLLECTIVES, 0)
    rows, launched, thread = (values[order][:MAX_COLLECTIVES] for values in (rows, launched, thread))
    operations = trace.operations
    start, end = (operations[name].to_numpy()[rows] for name in ("start", "end"))
    names = operations["name"].gather(rows).cast(pl.String)
    kinds = sorted({collective_kind(name) for name in names.unique()})
    kind = np.array([kinds.index(collective_kind(name)) for name in names], np.int64)
    channels, channel = _channels(trace, rows, launched, thread)
    step = np.concatenate([np.array([BEFORE_ALL], np.int64), numbers])[np.searchsorted(begin, launched, side="right")]
    return Collectives.pack(
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


def _launch_times_and_threads(trace: Trace, rows: Times) -> tuple[Times, Times]:
    """Return the start and the thread of each kernel's launch call; the kernel's own start and -1 if unknown."""
    launch = trace.operations["launch"].gather(rows)
    known = launch.is_not_null().to_numpy()
    at = launch.fill_null(0).to_numpy()
    start = trace.operations["start"].to_numpy()[rows]
    if not known.any():
        return start, np.full(len(rows), -1, np.int64)
    calls, threads = (trace.api[name].to_numpy() for name in ("start", "thread"))
    return np.where(known, calls[at], start), np.where(known, threads[at], -1).astype(np.int64)


def _channels(trace: Trace, rows: Times, launched: Times, thread: Times) -> tuple[tuple[Channel, ...], Times]:
    """Return the distinct channels, and the index of each kernel's channel."""
    streams = trace.operations["stream"].to_numpy()[rows]
    ids = trace.streams["stream_id"].to_numpy()
    names = _kernel_communicators(trace.sizes.calls, launched, thread) or _process_groups(trace.sizes.messages, rows)
    if names is None:
        used = np.unique(streams)
        return tuple(Channel(None, int(ids[row])) for row in used), np.searchsorted(used, streams).astype(np.int64)
    distinct = sorted(set(names))
    index_of = {name: index for index, name in enumerate(distinct)}
    channel = np.array([index_of[name] for name in names], np.int64)
    # A communicator may use several streams; its first one identifies the channel.
    return tuple(Channel(name, int(ids[streams[channel == index_of[name]][0]])) for name in distinct), channel


def _process_groups(messages: pl.DataFrame, rows: Times) -> list[str] | None:
    """Return each kernel's process group, which all its ranks name alike. None if any kernel's group is unknown."""
    groups = pl.DataFrame({"operation": rows}).join(
        messages.select(pl.col("operation").cast(pl.Int64), "group"), on="operation", how="left", maintain_order="left"
    )["group"]
    return None if groups.is_empty() or groups.null_count() else groups.to_list()


def _kernel_communicators(calls: pl.DataFrame, launched: Times, thread: Times) -> list[str] | None:
    """Return each kernel's communicator: that of the last NCCL call of its thread before the launch.

    A group of calls launches at its end, so its last call decides. None if any kernel's communicator is unknown.
    """
    if calls.is_empty() or len(launched) == 0 or (thread < 0).any():
        return None
    launches = pl.DataFrame({"start": launched, "thread": thread}).with_row_index("row").sort("start")
    joined = launches.join_asof(
        calls.select("start", "thread", "communicator"), on="start", by="thread", check_sortedness=False
    ).sort("row")
    return None if joined["communicator"].null_count() else joined["communicator"].to_list()
