"""A rank's communication kernels in launch order, and their communicators.

NCCL's NVTX payloads name the communicator, and traces of torch.profiler the process group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class CollectivePart:
    """The collectives of one GPU in a part of its capture, in the order of their starts: a value for each.

    At most MAX_COLLECTIVES are there, those that are launched first, of `count`. `stream` is a row of Trace.streams.
    `communicator` and `group` name the communicator and the process group; None if it is unknown.
    """

    count: int
    launched: Times
    start: Times
    end: Times
    hidden: Times
    kind: list[str]
    stream: Times
    communicator: list[str | None]
    group: list[str | None]

    @classmethod
    def measure(cls, trace: Trace, device: Activity) -> CollectivePart:
        """Return the collectives in the window of the device's work."""
        rows = device.rows[device.codes == COMMUNICATION]
        count = len(rows)
        launched, thread = _launch_times_and_threads(trace, rows)
        if count > MAX_COLLECTIVES:
            first = np.sort(np.argsort(launched, kind="stable")[:MAX_COLLECTIVES])
            rows, launched, thread = rows[first], launched[first], thread[first]
        operations = trace.operations
        start, end = (operations[name].to_numpy()[rows].astype(np.int64) for name in ("start", "end"))
        return cls(
            count,
            launched,
            start,
            end,
            intervals.covered_length(device.compute, start, end),
            [collective_kind(name) for name in operations["name"].gather(rows).cast(pl.String)],
            operations["stream"].to_numpy()[rows].astype(np.int64),
            _kernel_communicators(trace.sizes.calls, launched, thread),
            _process_groups(trace.sizes.messages, rows),
        )


def merge_collectives(parts: Sequence[CollectivePart], stream_ids: Times, begin: Times, numbers: Times) -> Collectives:
    """Return the first MAX_COLLECTIVES collectives of one GPU, from its parts in the order of time.

    `stream_ids` has the id of each row of Trace.streams. `begin` are the starts of the rank's iterations, ascending,
    and `numbers` their numbers. If the communicator of a kernel is unknown, streams serve as channels.
    """
    launched, start, end, hidden, stream = (
        np.concatenate([EMPTY, *(getattr(part, name) for part in parts)])
        for name in ("launched", "start", "end", "hidden", "stream")
    )
    order = np.argsort(launched, kind="stable")[:MAX_COLLECTIVES]
    launched, start, end, hidden, stream = (values[order] for values in (launched, start, end, hidden, stream))
    names, communicators, groups = (
        [values[at] for at in order.tolist()]
        for values in (
            [value for part in parts for value in getattr(part, name)] for name in ("kind", "communicator", "group")
        )
    )
    kinds = sorted(set(names))
    channels, channel = _channels(stream, stream_ids, communicators, groups)
    step = np.concatenate([np.array([BEFORE_ALL], np.int64), numbers])[np.searchsorted(begin, launched, side="right")]
    return Collectives.pack(
        kinds=tuple(kinds),
        channels=channels,
        start=start,
        end=end,
        hidden=hidden,
        step=step,
        kind=_places(kinds, names),
        channel=channel,
        left_out=sum(part.count for part in parts) - len(order),
    )


def _places(distinct: list[str], names: list[str]) -> Times:
    """Return the place of each name in a list of distinct names."""
    place = {name: index for index, name in enumerate(distinct)}
    return np.array([place[name] for name in names], np.int64)


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
    names = next((known for known in map(_all_known, (communicators, groups)) if known), None)
    if names is None:
        used = np.unique(stream)
        return tuple(Channel(None, int(stream_ids[row])) for row in used), np.searchsorted(used, stream)
    distinct = sorted(set(names))
    channel = _places(distinct, names)
    # A communicator may use several streams; its first one identifies the channel.
    first = np.unique(channel, return_index=True)[1]
    ids = stream_ids[stream[first]].tolist()
    return tuple(Channel(name, number) for name, number in zip(distinct, ids, strict=True)), channel


def _all_known(names: list[str | None]) -> list[str]:
    """Return the names, or nothing if any is unknown."""
    known = [name for name in names if name is not None]
    return known if len(known) == len(names) else []


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
