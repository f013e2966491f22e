"""The host synchronizes with the GPU in every iteration.

Symptom: cudaStreamSynchronize, cudaDeviceSynchronize or cudaEventSynchronize at least once in each step; the GPU runs
out of work and restarts.
Cause: `loss.item()`, `print(tensor)`, `.cpu()`, `torch.cuda.synchronize()`, `if tensor > x`, boolean indexing.
Remedy: keep the value on the device, read it every N steps, or use a non-blocking copy and an event.

Claims the idle cause `sync`, and after the return of each wait the causes `launch`, `api` and `host`, together at most
the cost of the calls (docs/definitions.md "Synchronization"), not the time for which they block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.model.units import duration, quantity
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, OldRule
from traceview.pricing.claims import STEADY, Collected, GapGroup, IdleClaim
from traceview.pricing.texts import join_words

MAX_RESTART = 1_000_000  # ns; a host that takes longer to launch again is busy with something else: `host_bound`
RESTARTS = "restarts"
RESTART_CLAIM = IdleClaim(("host", "launch", "api"), RESTARTS)
MIN_CALLS = 10  # fewest calls that count in a capture without iterations


class _SynchronizeSums(NamedTuple):
    """Synchronizations: calls by name and by the range that they are in, and their ns."""

    calls: dict[str, int]
    ranges: dict[str, int]
    blocked: int
    waited: int
    cost: int


def _collect(part: CapturePart, device: DevicePart) -> Collected[_SynchronizeSums]:
    """Count the calls, and group the gaps after them."""
    calls = calls_of_device(device, part.host.sync.frame)
    owner = part.ranges_at(calls["thread"].cast(pl.Int64).to_numpy(), calls["start"].to_numpy())
    names, which = part.range_names(owner[owner >= 0])
    ranges = dict(zip(names, np.bincount(which, minlength=len(names)).tolist(), strict=True))
    blocked, waited, cost = (int(calls[name].sum()) for name in ("blocked", "waited", "cost"))
    return Collected(
        _SynchronizeSums(count_names(calls), ranges, blocked, waited, cost), {RESTARTS: restart_gaps(device, calls)}
    )


def _decide(facts: CaptureFacts, sums: Mapping[int, _SynchronizeSums]) -> Iterator[FindingDraft]:
    """Yield one finding for each device with repeated synchronizations."""
    for device in facts.devices:
        count = sum(sums[device.row].calls.values())
        if count >= (facts.counted / 2 if facts.counted else MIN_CALLS) and count > 1:
            yield _draft(facts, device, sums[device.row], count)


def _draft(facts: CaptureFacts, device: DeviceFacts, sums: _SynchronizeSums, count: int) -> FindingDraft:
    """Return the finding on `count` calls."""
    frequent = sorted(sums.calls, key=lambda name: (-sums.calls[name], name))
    values = {
        "count": quantity(count, "synchronization"),
        "per_iteration": facts.per_iteration(count),
        "range": _main_range(sums.ranges, count),
        "calls": join_words([f"{sums.calls[name]:,} {name}" for name in frequent]),
        "blocked": duration(sums.blocked),
        "waited": duration(sums.waited),
    }
    claims = (IdleClaim(("sync",), STEADY), RESTART_CLAIM)
    return FindingDraft("synchronize", device, claims, values, at_most=sums.cost)


def _main_range(ranges: Mapping[str, int], count: int) -> str:
    """Return " (mostly in `sync`)", the range with most of `count` calls, or ""."""
    most = max(ranges, key=ranges.__getitem__, default="")
    return f" (mostly in `{most}`)" if 2 * ranges.get(most, 0) > count else ""


def calls_of_device(device: DevicePart, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the blocking calls (rows of SyncUse.frame) of the device's processes in its steady time."""
    return frame.filter(
        pl.col("process").is_in(list(device.process_ids))
        & (pl.col("end") > device.steady.start)
        & (pl.col("start") < device.steady.end)
    )


def count_names(calls: pl.DataFrame) -> dict[str, int]:
    """Return the number of calls by name, the most frequent first."""
    return dict(calls["name"].cast(pl.String).value_counts(sort=True).iter_rows())


def total_cost(calls: pl.DataFrame) -> int:
    """Return the cost of blocking calls, in ns."""
    return int(calls["cost"].sum())


def restart_gaps(device: DevicePart, calls: pl.DataFrame) -> GapGroup:
    """Return the restart gaps of blocking calls, each limited to its part of the calls' cost and to MAX_RESTART."""
    ns: Times = np.maximum((calls["cost"] - calls["idle_in_wait"]).to_numpy(), 0)
    gap = device.gaps_at(calls["returned"].to_numpy())
    chosen = np.flatnonzero((ns > 0) & (gap >= device.steady_gaps.start) & (gap < device.steady_gaps.stop))
    rows, which = np.unique(gap[chosen], return_inverse=True)
    limits = np.zeros(len(rows), np.int64)
    np.add.at(limits, which, ns[chosen])
    return GapGroup(rows, limits=np.minimum(limits, MAX_RESTART))


synchronize = OldRule("synchronize", _decide, _collect, place=110)
