"""Calls of MPI and events of OpenACC: ranges of the domains MPI and OpenACC.

nsys exported calls of MPI as ranges until 2022. Since then they have tables of their own, in which a call that concerns
several messages (MPI_Waitall) has a row for each. They become rows of NVTX_EVENTS again, so that every export of one
report gives the same figures. What OpenACC's runtime does for a construct has always had tables of its own; as ranges
they say which construct's work a GPU did, and what a thread that the GPU waits for was doing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from traceview.model.trace import OPENACC
from traceview.normalise.identity import process_of
from traceview.read import raw


@dataclass(frozen=True, slots=True)
class _Library:
    domain: str
    domain_id: int  # below 0: nsys counts from there
    tables: tuple[str, ...]
    name: str  # the column that says what was called
    has_moments: bool  # rows of no length (Alloc, Create), which are no ranges


LIBRARIES = (_Library("MPI", -1, raw.MPI, "textId", False), _Library(OPENACC, -2, raw.OPENACC, "nameId", True))


def with_library_calls(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the tables with NVTX_EVENTS that hold the calls of libraries, and without the tables of those."""
    rest = {name: frame for name, frame in tables.items() if name not in (*raw.MPI, *raw.OPENACC)}
    ranges = [found for library in LIBRARIES if (found := _ranges(library, tables)) is not None]
    if not ranges:
        return rest
    events = [frame for found in ranges for frame in (found, _domains(found))]
    before = [rest[raw.NVTX]] if raw.NVTX in rest else []
    return rest | {raw.NVTX: pl.concat([*before, *events], how="diagonal").drop("domain")}


def _ranges(library: _Library, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame | None:
    found = [tables[name] for name in library.tables if name in tables and not tables[name].is_empty()]
    if not found:
        return None
    wanted = ("start", "end", "globalTid", pl.col(library.name).alias("textId"))
    calls = pl.concat([frame.select(wanted) for frame in found])
    if library.has_moments:
        calls = calls.filter((pl.col("end") != pl.col("start")).fill_null(True))
    # A thread makes one call at a time: the same times and name are the same call.
    return calls.unique(maintain_order=True).with_columns(
        pl.lit(raw.PUSHED, pl.Int64).alias("eventType"),
        pl.lit(library.domain_id, pl.Int64).alias("domainId"),
        pl.lit(library.domain).alias("domain"),
    )


def _domains(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return an event for each process that says what the domain is called."""
    first = ranges.with_columns(process_of("globalTid").alias("process")).unique("process", keep="first")
    return first.select(
        "start",
        "end",
        "globalTid",
        pl.lit(raw.DOMAIN_CREATED, pl.Int64).alias("eventType"),
        "domainId",
        pl.col("domain").alias("text"),
        "domain",
    )
