"""NVTX ranges (docs/definitions.md "NVTX projected on the GPU"), and calls of MPI and OpenACC as ranges.

Names come from a text or a string id, domains from events that name them. nsys exported MPI calls as NVTX ranges until
2022. Since then they have their own tables, in which a call that concerns several messages (MPI_Waitall) has one row
per message. They are converted to rows of NVTX_EVENTS, so that every export of a report gives the same figures. OpenACC
events always had their own tables; as ranges they name the construct whose work a GPU ran or waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.model.sizes import empty_frame
from traceview.model.stacks import MODULE, OP, SCOPE_KINDS, SCOPES
from traceview.model.trace import OPENACC, PROFILER_DOMAINS, RANGES, TORCH_OPS
from traceview.normalise.codes import UNNAMED, categories, enum_column, event_texts, name_column, text_enum
from traceview.normalise.threads import Threads, process_of
from traceview.normalise.valid_rows import MAX_TIME, sort_by_time
from traceview.read import raw

OP_MARK = r", (?:op_id|seq) = \d"
OP_PARTS = r"^(.*?)(?:, seq = (\d+))?(?:, op_id = \d+)?(?:, sizes = .*)?(?:, input_op_ids = .*)?$"
# A range of record_function has an op_id too, but neither a namespace nor a sequence number.
OP_NAME = r"::|^[\w:]+Backward\d*$"
BACKWARD_OP = r"^autograd::engine::evaluate_function|Backward\d*$"
MODULE_NAME = r"^\{'Module': '([^']+)'"
MODULE_CATEGORY = "module"
BACKWARD_SUFFIX = " backward"


def trace_scopes(tables: dict[str, pl.DataFrame], threads: Threads) -> pl.DataFrame:
    """Return model.SCOPES of a trace of torch.profiler."""
    scopes = tables.get(raw.SCOPES)
    if scopes is None or scopes.is_empty():
        return empty_frame(SCOPES)
    start, end = pl.col("start"), pl.col("end")
    valid = (
        scopes.with_columns(
            threads.rows(scopes["globalTid"]).cast(pl.Int16), name_column(scopes["nameId"], tables).alias("name")
        )
        .filter(start.is_between(-MAX_TIME, MAX_TIME), end.is_between(start, MAX_TIME), pl.col("thread") >= 0)
        .filter(pl.col("kind").is_between(0, len(SCOPE_KINDS) - 1))
    )
    return valid.select(
        *("start", "end", "name", "thread"),
        process_of("globalTid").alias("process"),
        enum_column(valid["kind"].to_numpy().astype(np.uint8), pl.Enum(SCOPE_KINDS)).alias("kind"),
        (pl.col("backward") == 1).fill_null(False).alias("backward"),
        *("sequence", "forward_thread"),
        pl.lit(None, pl.Int32).alias("range"),
    )


class NamedRanges(NamedTuple):
    """Trace.ranges with folded names of ops, and the scopes among them."""

    ranges: pl.DataFrame
    scopes: pl.DataFrame


def range_scopes(ranges: pl.DataFrame, in_category: pl.Series) -> NamedRanges:
    """Find the ops and modules among ranges (model.RANGES); `in_category` marks ranges of the category of modules."""
    names = categories(ranges["name"])
    texts = _names(names)
    if texts["range_name"].to_list() == names and not texts["is_module"].any() and not in_category.any():
        return NamedRanges(ranges, empty_frame(SCOPES))
    contents = texts[ranges["name"].to_physical()].with_columns(pl.col("is_module") | in_category)
    domain = pl.when(contents["is_op"]).then(pl.lit(TORCH_OPS)).otherwise(ranges["domain"].cast(pl.String))
    named = ranges.with_columns(text_enum(contents["range_name"]).alias("name"), domain.alias("domain"))
    return NamedRanges(named.with_columns(text_enum(named["domain"])), _scopes(ranges.drop("name"), contents))


def _names(texts: list[str]) -> pl.DataFrame:
    """Return what the names of ranges hold: range_name (folded), name (of the scope), sequence, is_op, is_module."""
    names = pl.DataFrame({"text": texts}, schema={"text": pl.String})
    marked, module = pl.col("text").str.contains(OP_MARK), pl.col("text").str.extract(MODULE_NAME)
    groups = pl.col("text").str.extract_groups(OP_PARTS).struct
    folded = pl.when(marked).then(groups.field("1")).otherwise("text")
    sequence = pl.when(marked).then(groups.field("2").cast(pl.Int64, strict=False))
    return names.select(
        folded.alias("range_name"),
        pl.coalesce(module, folded).alias("name"),
        sequence.alias("sequence"),
        (marked & (sequence.is_not_null() | folded.str.contains(OP_NAME))).alias("is_op"),
        module.is_not_null().alias("is_module"),
    )


def _scopes(ranges: pl.DataFrame, contents: pl.DataFrame) -> pl.DataFrame:
    """Return model.SCOPES of ranges whose names hold `contents`."""
    name = pl.col("name")
    around_backward = pl.col("is_module") & name.str.ends_with(BACKWARD_SUFFIX)
    scopes = (
        pl.concat([ranges, contents], how="horizontal")
        .with_row_index("range")
        .filter(pl.col("is_op") | pl.col("is_module"))
        .select(
            *("start", "end"),
            pl.when(around_backward).then(name.str.strip_suffix(BACKWARD_SUFFIX)).otherwise(name).alias("name"),
            *("thread", "process"),
            pl.when("is_module").then(pl.lit(MODULE)).otherwise(pl.lit(OP)).cast(pl.Enum(SCOPE_KINDS)).alias("kind"),
            (around_backward | (pl.col("is_op") & name.str.contains(BACKWARD_OP))).alias("backward"),
            "sequence",
            pl.lit(None, pl.Int64).alias("forward_thread"),
            pl.col("range").cast(pl.Int32),
        )
    )
    return scopes.with_columns(text_enum(scopes["name"]))


class EventLibrary(NamedTuple):
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
        empty = empty_frame(RANGES)
        return NamedRanges(empty, empty_frame(SCOPES))
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
        text_enum(ranges["name"]),
        text_enum(ranges["domain"]),
        threads.rows(ranges["globalTid"]),
        "process",
        "open",
    )
    return range_scopes(frame, _are_modules(ranges, events))


def _are_modules(ranges: pl.DataFrame, events: pl.DataFrame) -> pl.Series:
    """Return a mask of the ranges in the module category of their domain."""
    keys = ["process", "domainId", "category"]
    named = events.filter(pl.col("eventType") == raw.CATEGORY_NAMED, pl.col("name") == MODULE_CATEGORY)
    if named.is_empty():
        return pl.repeat(False, len(ranges), eager=True)
    marked = named.select(keys).unique().with_columns(is_module=True)
    return ranges.join(marked, on=keys, how="left", maintain_order="left")["is_module"].fill_null(False)


def _with_names(nvtx: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    domain = pl.col("domainId").fill_null(0) if "domainId" in nvtx.columns else pl.lit(0, pl.Int64)
    return nvtx.select(
        "start",
        "end",
        "eventType",
        pl.col("globalTid").fill_null(0),
        event_texts(nvtx, tables).fill_null(UNNAMED).alias("name"),
        domain.alias("domainId"),
        (pl.col("category") if "category" in nvtx.columns else pl.lit(None, pl.Int64)).alias("category"),
        process_of("globalTid").alias("process"),
    )


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
