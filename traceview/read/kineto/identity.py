"""Whose an event is. A GPU event names its GPU and stream only: its process is the one that launched it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

WIDEST = 0xFFFFFF  # nsys packs a process and a thread into 24 bits each


@dataclass(frozen=True, slots=True)
class Identity:
    """`processes` and `threads` give an id of 24 bits for each id of the trace; `main` is a place in the former.

    `launched` has one row for each correlation id, with the process that used it, where there are several.
    """

    processes: pl.DataFrame
    threads: pl.DataFrame
    main: int
    launched: pl.DataFrame | None

    @classmethod
    def of(cls, events: Mapping[str, pl.DataFrame]) -> Identity:
        """Take the ids of the events on the host."""
        host = pl.concat([events[sort].select("pid", "tid", "correlation") for sort in ("call", "range")])
        processes = _narrow(host["pid"])
        calls = events["call"].select("pid", "correlation").join(processes, on="pid", how="left")
        launched = None
        if calls["pid"].n_unique() > 1:
            launched = calls.unique("correlation", keep="first", maintain_order=True).select("correlation", "pid24")
        ids = calls["pid24"] if len(calls) else host.join(processes, on="pid", how="left")["pid24"]
        common = ids.drop_nulls().mode().sort()
        return cls(processes, _narrow(host["tid"]), int(common[0]) if len(common) else 0, launched)

    def global_tid(self, frame: pl.DataFrame) -> pl.Series:
        """Return nsys's globalTid of events on the host."""
        joined = frame.select("pid", "tid").join(self.processes, on="pid", how="left", maintain_order="left")
        joined = joined.join(self.threads, on="tid", how="left", maintain_order="left")
        packed = pl.col("pid24").fill_null(self.main) * (WIDEST + 1) + pl.col("tid24").fill_null(0)
        return joined.select(packed.alias("globalTid")).to_series()

    def global_pid(self, frame: pl.DataFrame) -> pl.Series:
        """Return nsys's globalPid of events on a GPU."""
        if self.launched is None:
            return pl.Series("globalPid", [self.main * (WIDEST + 1)], pl.Int64).new_from_index(0, len(frame))
        joined = frame.select("correlation").join(self.launched, on="correlation", how="left", maintain_order="left")
        return joined.select((pl.col("pid24").fill_null(self.main) * (WIDEST + 1)).alias("globalPid")).to_series()


def _narrow(ids: pl.Series) -> pl.DataFrame:
    """Return a 24-bit id for each id: itself where it fits, else one that nobody has."""
    name = ids.name
    unique = ids.unique().drop_nulls().sort()
    fits = unique.is_between(0, WIDEST)
    taken = set(unique.filter(fits).to_list())
    free = (one for one in range(WIDEST, 0, -1) if one not in taken)
    wide = unique.filter(~fits)
    made = [next(free, 0) for _ in range(len(wide))]
    return pl.DataFrame(
        {
            name: pl.concat([unique.filter(fits), wide]),
            f"{name}24": pl.concat([unique.filter(fits), pl.Series(made, dtype=pl.Int64)]),
        }
    )
