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
from traceview.model.fleet import Channel, Collectives
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


def rank_collectives(trace: Trace, device: Activity, begin: Times, numbers: Times) -> Collectives:
    """Return the first MAX_COLLECTIVES collectives of one GPU in launch order.

    `begin` are the starts of the rank's iterations, ascending, and `numbers` their numbers. If the communicator of a
    kernel is unknown, streams serve as channels.
    """
    rows = device.rows[device.codes == COMMUNICATION]
    launched, thread = _launch_times_and_threads(trace, rows)
    start, end = (trace.operations[name].to_numpy()[rows].astype(np.int64) for name in ("start", "end"))
    hidden = intervals.covered_length(device.compute, start, end)
    order = np.argsort(launched, kind="stable")[:MAX_COLLECTIVES]
    left_out, rows = len(rows) - len(order), rows[order]
    launched, thread, start, end, hidden = (values[order] for values in (launched, thread, start, end, hidden))
    names = [collective_kind(name) for name in trace.operations["name"].gather(rows).cast(pl.String)]
    kinds, kind = np.unique(np.array(names, np.str_), return_inverse=True)
    channels, channel = _channels(
        trace.operations["stream"].to_numpy()[rows].astype(np.int64),
        trace.streams["stream_id"].to_numpy(),
        _kernel_communicators(trace.sizes.calls, launched, thread),
        _process_groups(trace.sizes.messages, rows),
    )
    steps = np.concatenate([np.array([BEFORE_ALL], np.int64), numbers])
    return Collectives(
        kinds=tuple(kinds.tolist()),
        channels=channels,
        step=steps[np.searchsorted(begin, launched, side="right")],
        kind=kind.astype(np.int64),
        channel=channel,
        start=start,
        end=end,
        hidden=hidden,
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


def _channels(
    stream: Times, stream_ids: Times, communicators: list[str | None], groups: list[str | None]
) -> tuple[tuple[Channel, ...], Times]:
    """Return the distinct channels, and the index of each kernel's channel."""
    named = next((names for names in (communicators, groups) if names and None not in names), None)
    if named is None:
        used, channel = np.unique(stream, return_inverse=True)
        return tuple(Channel(None, number) for number in stream_ids[used].tolist()), channel.astype(np.int64)
    # A communicator may use several streams; its first one identifies the channel.
    names, first, channel = np.unique(np.array(named, np.str_), return_index=True, return_inverse=True)
    ids = stream_ids[stream[first]].tolist()
    return tuple(map(Channel, names.tolist(), ids)), channel.astype(np.int64)


def _process_groups(messages: pl.DataFrame, rows: Times) -> list[str | None]:
    """Return each kernel's process group, which all its ranks name alike."""
    groups: list[str | None] = (
        pl.DataFrame({"operation": rows}, schema={"operation": pl.Int64})
        .join(
            messages.select(pl.col("operation").cast(pl.Int64), "group"),
            on="operation",
            how="left",
            maintain_order="left",
        )["group"]
        .to_list()
    )
    return groups


def _kernel_communicators(calls: pl.DataFrame, launched: Times, thread: Times) -> list[str | None]:
    """Return each kernel's communicator: that of the last NCCL call of its thread before the launch.

    A group of calls launches at its end, so its last call decides.
    """
    if calls.is_empty():
        return [None] * len(launched)
    launches = pl.DataFrame({"start": launched, "thread": thread}).with_row_index("row").sort("start")
    joined = launches.join_asof(
        calls.select("start", "thread", "communicator"), on="start", by="thread", check_sortedness=False
    )
    communicators: list[str | None] = joined.sort("row")["communicator"].to_list()
    return communicators
