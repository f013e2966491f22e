"""Processes and threads of events. A GPU event names its GPU and stream; its process is the one that launched it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import polars as pl

MAX_ID = 0xFFFFFF  # nsys packs a process and a thread into 24 bits each


class TraceIdentity(NamedTuple):
    """`processes` and `threads` map the trace's ids to ids of 24 bits; `main` is the most frequent process.

    `launched` has the process of each correlation id if the trace has several processes, else it is None.
    """

    processes: pl.DataFrame
    threads: pl.DataFrame
    main: int
    launched: pl.DataFrame | None

    @classmethod
    def from_events(cls, frames: Mapping[str, pl.DataFrame]) -> TraceIdentity:
        """Collect the ids of the host events."""
        host = pl.concat([frames[sort].select("pid", "tid", "correlation") for sort in ("call", "range")])
        processes = _ids_of_24_bits(host["pid"])
        calls = frames["call"].select("pid", "correlation").join(processes, on="pid", how="left")
        launched = None
        if calls["pid"].n_unique() > 1:
            launched = calls.unique("correlation", keep="first", maintain_order=True).select("correlation", "pid24")
        ids = calls["pid24"] if len(calls) else host.join(processes, on="pid", how="left")["pid24"]
        common = ids.drop_nulls().mode().sort()
        return cls(processes, _ids_of_24_bits(host["tid"]), int(common[0]) if len(common) else 0, launched)

    def global_tid(self, frame: pl.DataFrame) -> pl.Series:
        """Return nsys's globalTid of host events."""
        joined = frame.select("pid", "tid").join(self.processes, on="pid", how="left", maintain_order="left")
        joined = joined.join(self.threads, on="tid", how="left", maintain_order="left")
        packed = pl.col("pid24").fill_null(self.main) * (MAX_ID + 1) + pl.col("tid24").fill_null(0)
        return joined.select(packed.alias("globalTid")).to_series()

    def global_pid(self, frame: pl.DataFrame) -> pl.Series:
        """Return nsys's globalPid of GPU events."""
        if self.launched is None:
            return pl.Series("globalPid", [self.main * (MAX_ID + 1)], pl.Int64).new_from_index(0, len(frame))
        joined = frame.select("correlation").join(self.launched, on="correlation", how="left", maintain_order="left")
        return joined.select((pl.col("pid24").fill_null(self.main) * (MAX_ID + 1)).alias("globalPid")).to_series()


def _ids_of_24_bits(ids: pl.Series) -> pl.DataFrame:
    """Return a 24-bit id for each id: the id itself if it fits, else an unused one."""
    name = ids.name
    unique = ids.unique().drop_nulls().sort()
    fits = unique.is_between(0, MAX_ID)
    taken = set(unique.filter(fits).to_list())
    free = (number for number in range(MAX_ID, 0, -1) if number not in taken)
    wide = unique.filter(~fits)
    assigned = [next(free, 0) for _ in range(len(wide))]
    return pl.DataFrame(
        {
            name: pl.concat([unique.filter(fits), wide]),
            f"{name}24": pl.concat([unique.filter(fits), pl.Series(assigned, dtype=pl.Int64)]),
        }
    )
