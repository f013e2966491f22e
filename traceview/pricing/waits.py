"""The cost of blocking calls as claims on a device's idle time (docs/definitions.md "Synchronization")."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.pricing.base import DeviceFacts
from traceview.pricing.ledger import IdleClaim

RESTART_CAUSES = ("host", "launch", "api")
MAX_RESTART = 1_000_000  # ns; a host that takes longer to launch again is busy with something else: `host_bound`


def calls_of_device(device: DeviceFacts, frame: pl.DataFrame) -> pl.DataFrame:
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


def restart_claim(device: DeviceFacts, calls: pl.DataFrame) -> IdleClaim:
    """Claim the restart gaps of blocking calls, as far as they are part of the calls' cost, each up to MAX_RESTART."""
    ns: Times = np.maximum((calls["cost"] - calls["idle_in_wait"]).to_numpy(), 0)
    gap = device.gaps_at(calls["returned"].to_numpy())
    chosen = np.flatnonzero((ns > 0) & (gap >= device.steady_gaps.start) & (gap < device.steady_gaps.stop))
    rows, which = np.unique(gap[chosen], return_inverse=True)
    at_most = np.zeros(len(rows), np.int64)
    np.add.at(at_most, which, ns[chosen])
    return IdleClaim(RESTART_CAUSES, rows=rows, at_most=np.minimum(at_most, MAX_RESTART))
