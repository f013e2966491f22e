"""The cost of blocking calls, and the gaps after them (docs/definitions.md "Synchronization")."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.pricing.base import DevicePart
from traceview.pricing.claims import GapGroup, IdleClaim

RESTART_CAUSES = ("host", "launch", "api")
MAX_RESTART = 1_000_000  # ns; a host that takes longer to launch again is busy with something else: `host_bound`


def calls_of_device(device: DevicePart, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the blocking calls (rows of SyncUse.frame) of the device's processes in its steady time."""
    return frame.filter(
        pl.col("process").is_in(list(device.use.process_ids))
        & (pl.col("end") > device.steady.start)
        & (pl.col("start") < device.steady.end)
    )


def count_names(calls: pl.DataFrame) -> dict[str, int]:
    """Return the number of calls by name, the most frequent first."""
    return dict(calls["name"].cast(pl.String).value_counts(sort=True).iter_rows())


def total_cost(calls: pl.DataFrame) -> int:
    """Return the cost of blocking calls, in ns."""
    return int(calls["cost"].sum())


RESTARTS = "restarts"
RESTART_CLAIM = IdleClaim(RESTART_CAUSES, RESTARTS)


def restart_gaps(device: DevicePart, calls: pl.DataFrame) -> GapGroup:
    """Return the restart gaps of blocking calls, each limited to its part of the calls' cost and to MAX_RESTART."""
    ns: Times = np.maximum((calls["cost"] - calls["idle_in_wait"]).to_numpy(), 0)
    gap = device.gaps_at(calls["returned"].to_numpy())
    chosen = np.flatnonzero((ns > 0) & (gap >= device.steady_gaps.start) & (gap < device.steady_gaps.stop))
    rows, which = np.unique(gap[chosen], return_inverse=True)
    limits = np.zeros(len(rows), np.int64)
    np.add.at(limits, which, ns[chosen])
    return GapGroup(rows, limits=np.minimum(limits, MAX_RESTART))
