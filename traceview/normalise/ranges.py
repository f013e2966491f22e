"""NVTX ranges (docs/definitions.md "NVTX projected on the GPU"), and calls of MPI and OpenACC as ranges.

Names come from a text or a string id, domains from events that name them. nsys exported MPI calls as NVTX ranges until
2022. Since then they have their own tables, in which a call that concerns several messages (MPI_Waitall) has one row
per message. They are converted to rows of NVTX_EVENTS, so that every export of a report gives the same figures. OpenACC
events always had their own tables; as ranges they name the construct whose work a GPU ran or waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from traceview.model.stacks import no_scopes
from traceview.model.trace import OPENACC, PROFILER_DOMAINS, RANGES
from traceview.normalise.codes import UNNAMED, texts_of
from traceview.normalise.order import sort_by_time
from traceview.normalise.scopes import MODULE_CATEGORY, NamedRanges, range_scopes
from traceview.normalise.threads import Threads, process_of
from traceview.read import raw


@dataclass(frozen=True, slots=True)
class EventLibrary:
    """A library whose calls have tables of their own."""

    domain: str
    domain_id: int  # negative, because nsys counts domains from 0
    tables: tuple[str, ...]
    name: str  # the column with the string id of the call
    has_instants: bool  # rows without a length (Alloc, Create), which are not ranges


LIBRARIES = (EventLibrary("MPI", -1, raw.MPI, "textId", False), EventLibrary(OPENACC, -2, raw.OPENACC, "nameId", True))


def ranges_frame(tables: dict[str, pl.DataFrame], threads: Threads, capture_end: int) -> NamedRanges:
    """Return model.RANGES, sorted, and the scopes among them; a range without an end lasts to `capture_end`.

    Ranges that nsys writes about the Python interpreter (PROFILER_DOMAINS) are left out: they are not the program's.
    """
    nvtx = tables.get(raw.NVTX)
    if nvtx is None or nvtx.is_empty():
        empty = pl.DataFrame(schema=dict(RANGES) | {"name": pl.Enum([]), "domain": pl.Enum([])})
        return NamedRanges(empty, no_scopes())
    events = _with_names(nvtx, tables)
    domains = events.filter(pl.col("eventType") == raw.DOMAIN_CREATED).select("process", "domainId", "name")
    ranges = events.filter(pl.col("eventType").is_in(raw.RANGE_TYPES)).with_columns(
        pl.col("end").is_null().alias("open"),
        pl.max_horizontal(pl.col("end").fill_null(capture_end), "start").alias("end"),
    )
    ranges = sort_by_time(ranges)
    names = domains.unique(["process", "domainId"], keep="first").rename({"name": "domain"})
    domain = ranges.join(names, on=["process", "domainId"], how="left", maintain_order="left").select(
        pl.when(pl.col("domainId") == 0)
        .then(pl.lit(""))
        .otherwise(pl.col("domain").fill_null(pl.format("domain {}", "domainId")))
        .alias("domain")
    )["domain"]
    ranges = ranges.with_columns(domain).filter(~domain.is_in(PROFILER_DOMAINS))
    frame = ranges.select(
        "start",
        "end",
        _text_enum(ranges["name"]),
        _text_enum(ranges["domain"]),
        threads.rows(ranges["globalTid"]),
        "process",
        "open",
    )
    return range_scopes(frame, _are_modules(ranges, events))


def without_program_ranges(nvtx: pl.DataFrame) -> pl.DataFrame:
    """Return NVTX_EVENTS without the ranges that ranges_frame returns; those of PROFILER_DOMAINS stay."""
    is_range = pl.col("eventType").is_in(raw.RANGE_TYPES)
    if not {"text", "domainId"} <= set(nvtx.columns):
        return nvtx.filter(~is_range)
    created = nvtx.filter(pl.col("eventType") == raw.DOMAIN_CREATED, pl.col("text").is_in(PROFILER_DOMAINS))
    return nvtx.filter(~is_range | pl.col("domainId").is_in(created["domainId"].implode()))


def _are_modules(ranges: pl.DataFrame, events: pl.DataFrame) -> pl.Series:
    """Return a mask of the ranges in the module category of their domain."""
    keys = ["process", "domainId", "category"]
    named = events.filter(pl.col("eventType") == raw.CATEGORY_NAMED, pl.col("name") == MODULE_CATEGORY)
    if named.is_empty():
        return pl.repeat(False, len(ranges), eager=True)
    marked = named.select(keys).unique().with_columns(is_module=True)
    return ranges.join(marked, on=keys, how="left", maintain_order="left")["is_module"].fill_null(False)


def _with_names(nvtx: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    text = pl.col("text") if "text" in nvtx.columns else pl.lit(None, pl.String)
    ids = nvtx["textId"] if "textId" in nvtx.columns else pl.Series([None] * len(nvtx), dtype=pl.Int64)
    used = ids.unique().drop_nulls().sort()
    registered = pl.DataFrame({"textId": ids}).join(
        pl.DataFrame({"textId": used, "registered": pl.Series(texts_of(used, tables), dtype=pl.String)}),
        on="textId",
        how="left",
        maintain_order="left",
    )["registered"]
    domain = pl.col("domainId").fill_null(0) if "domainId" in nvtx.columns else pl.lit(0, pl.Int64)
    return nvtx.select(
        "start",
        "end",
        "eventType",
        pl.col("globalTid").fill_null(0),
        pl.coalesce(text, pl.lit(registered), pl.lit(UNNAMED)).alias("name"),
        domain.alias("domainId"),
        (pl.col("category") if "category" in nvtx.columns else pl.lit(None, pl.Int64)).alias("category"),
        process_of("globalTid").alias("process"),
    )


def _text_enum(texts: pl.Series) -> pl.Series:
    return texts.cast(pl.Enum(texts.unique(maintain_order=True)))


def with_library_calls(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the tables with the calls of libraries in NVTX_EVENTS, and without the libraries' own tables."""
    rest = {name: frame for name, frame in tables.items() if name not in (*raw.MPI, *raw.OPENACC)}
    calls = [ranges for library in LIBRARIES if (ranges := _library_ranges(library, tables)) is not None]
    if not calls:
        return rest
    events = [frame for ranges in calls for frame in (ranges, _domain_events(ranges))]
    before = [rest[raw.NVTX]] if raw.NVTX in rest else []
    return rest | {raw.NVTX: pl.concat([*before, *events], how="diagonal").drop("domain")}


def _library_ranges(library: EventLibrary, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame | None:
    frames = [tables[name] for name in library.tables if name in tables and not tables[name].is_empty()]
    if not frames:
        return None
    wanted = ("start", "end", "globalTid", pl.col(library.name).alias("textId"))
    calls = pl.concat([frame.select(wanted) for frame in frames])
    if library.has_instants:
        calls = calls.filter((pl.col("end") != pl.col("start")).fill_null(True))
    # A thread makes one call at a time: rows with the same times and name are the same call.
    return calls.unique(maintain_order=True).with_columns(
        pl.lit(raw.PUSHED, pl.Int64).alias("eventType"),
        pl.lit(library.domain_id, pl.Int64).alias("domainId"),
        pl.lit(library.domain).alias("domain"),
    )


def _domain_events(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return one event per process that names the domain."""
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
