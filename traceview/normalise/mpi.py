"""Calls of MPI: ranges of the domain MPI, as nsys records them and as its exports held them until 2022.

Since then they have tables of their own, in which a call that concerns several messages (MPI_Waitall) has a row for
each. They become rows of NVTX_EVENTS again, so that every export of one report gives the same figures.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from traceview.normalise.identity import process_of
from traceview.read import raw

DOMAIN = "MPI"
DOMAIN_ID = -1  # nsys counts from 0
DOMAIN_CREATED, PUSHED = 75, 59


def with_mpi_calls(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the tables with NVTX_EVENTS that hold the calls of MPI, and without the tables of MPI."""
    found = [tables[name] for name in raw.MPI if name in tables and not tables[name].is_empty()]
    rest = {name: frame for name, frame in tables.items() if name not in raw.MPI}
    if not found:
        return rest
    calls = pl.concat([frame.select(raw.TABLES[raw.MPI[0]].needed) for frame in found])
    # A thread makes one call at a time: the same times and name are the same call.
    ranges = calls.unique(maintain_order=True).with_columns(
        pl.lit(PUSHED, pl.Int64).alias("eventType"), pl.lit(DOMAIN_ID, pl.Int64).alias("domainId")
    )
    events = [ranges, _domains(ranges)]
    if raw.NVTX in rest:
        events.insert(0, rest[raw.NVTX])
    return rest | {raw.NVTX: pl.concat(events, how="diagonal")}


def _domains(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return an event for each process that says what the domain is called."""
    first = ranges.with_columns(process_of("globalTid").alias("process")).unique("process", keep="first")
    return first.select(
        "start",
        "end",
        "globalTid",
        pl.lit(DOMAIN_CREATED, pl.Int64).alias("eventType"),
        "domainId",
        pl.lit(DOMAIN).alias("text"),
    )
