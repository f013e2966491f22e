"""How fast a GPU's copies run at each moment: a counter for each kind of copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceview.export.contents import Contents
from traceview.export.tracks import Tracks
from traceview.intervals import Times

MOST = 1e15  # no copy is that fast; a damaged capture's must still add up


@dataclass(frozen=True, slots=True)
class Counter:
    """A value from each moment of `at` (ns, ascending) on, until the next."""

    track: int  # Track.id
    at: Times
    value: Times  # bytes a second


def counters(of: Contents, device: int, tracks: Tracks) -> Iterator[Counter]:
    """Yield a counter for each kind of copy of a device (a row of Trace.devices).

    It is the bytes a second of the copies under way, added up.
    """
    copies = of.operations.filter((pl.col("device") == device) & pl.col("kind").is_not_null())
    copies = copies.filter(pl.col("end") > pl.col("start"))
    for kind in copies["kind"].cast(pl.String).unique().sort():
        mine = copies.filter(pl.col("kind").cast(pl.String) == kind)
        # Of a copy that the window cuts, the rate is that of the whole.
        whole = of.trace.operations[mine["row"].to_numpy()]
        length = (whole["end"] - whole["start"]).to_numpy()
        rate = np.rint(np.clip(mine["bytes"].to_numpy() / length * 1e9, 0, MOST)).astype(np.int64)
        change = (
            pl.DataFrame(
                {
                    "at": np.concatenate([mine["start"].to_numpy(), mine["end"].to_numpy()]),
                    "change": np.concatenate([rate, -rate]),
                }
            )
            .group_by("at")
            .agg(pl.col("change").sum())
            .sort("at")
        )
        at, value = change["at"].to_numpy(), np.cumsum(change["change"].to_numpy())
        yield Counter(tracks.counter(device, f"{kind} bytes/s"), at, value)
