"""The host synchronizes with the GPU in every iteration.

Symptom: cudaStreamSynchronize, cudaDeviceSynchronize or cudaEventSynchronize at least once in each step; the GPU runs
out of work and restarts.
Cause: `loss.item()`, `print(tensor)`, `.cpu()`, `torch.cuda.synchronize()`, `if tensor > x`, boolean indexing.
Remedy: keep the value on the device, read it every N steps, or use a non-blocking copy and an event.

Claims the idle cause `sync`, and after the return of each wait the causes `launch`, `api` and `host`, together at most
the cost of the calls (docs/definitions.md "Synchronization"), not the time for which they block.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.model.units import duration, quantity
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import GapClaim
from traceview.pricing.texts import join_words

MAX_RESTART = 1_000_000  # ns; a host that takes longer to launch again is busy with something else: `host_bound`
MIN_CALLS = 10  # fewest calls that count in a capture without iterations


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield a finding for a GPU that the host waits for repeatedly."""
    calls = calls_of_device(device, capture.host.sync.frame)
    count = len(calls)
    if count < 2 or count < (capture.counted / 2 if capture.counted else MIN_CALLS):
        return
    values = {
        "count": quantity(count, "synchronization"),
        "per_iteration": capture.per_iteration(count),
        "range": _main_range(capture, calls),
        "calls": join_words([f"{each:,} {name}" for name, each in count_names(calls)]),
        "blocked": duration(int(calls["blocked"].sum())),
        "waited": duration(int(calls["waited"].sum())),
    }
    claims = (GapClaim(("sync",), device.steady_gaps), restart_claim(device, calls))
    yield FindingDraft("synchronize", device, claims, values, at_most=total_cost(calls))


def _main_range(capture: MeasuredCapture, calls: pl.DataFrame) -> str:
    """Return " (mostly in `sync`)", the range with most of the calls, or ""."""
    ranges = capture.ranges_at(calls["thread"].cast(pl.Int64).to_numpy(), calls["start"].to_numpy())
    names, which = capture.range_names(ranges[ranges >= 0])
    counts = np.bincount(which, minlength=1)
    return f" (mostly in `{names[counts.argmax()]}`)" if 2 * counts.max() > len(calls) else ""


def calls_of_device(device: GpuWork, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the blocking calls (rows of SyncUse.frame) of the device's processes in its steady time."""
    return frame.filter(
        pl.col("process").is_in(list(device.process_ids))
        & (pl.col("end") > device.steady.start)
        & (pl.col("start") < device.steady.end)
    )


def count_names(calls: pl.DataFrame) -> list[tuple[str, int]]:
    """Return the names of calls and how often each occurs, the most frequent first."""
    counts = calls["name"].cast(pl.String).value_counts()
    return counts.sort("count", "name", descending=[True, False]).rows()


def total_cost(calls: pl.DataFrame) -> int:
    """Return the cost of blocking calls, in ns."""
    return int(calls["cost"].sum())


def restart_claim(device: GpuWork, calls: pl.DataFrame) -> GapClaim:
    """Return the claim on the restart gaps of blocking calls, each at most its share of their cost and MAX_RESTART."""
    ns: Times = np.maximum((calls["cost"] - calls["idle_in_wait"]).to_numpy(), 0)
    gap = device.gaps_at(calls["returned"].to_numpy())
    chosen = np.flatnonzero((ns > 0) & (gap >= device.steady_gaps.start) & (gap < device.steady_gaps.stop))
    rows, which = np.unique(gap[chosen], return_inverse=True)
    limits = np.zeros(len(rows), np.int64)
    np.add.at(limits, which, ns[chosen])
    return GapClaim(("host", "launch", "api"), rows, np.minimum(limits, MAX_RESTART))


synchronize = Rule("synchronize", find)
