"""NVTX ranges: names from text or string id, domains by name (METRICS.md "NVTX projected on the GPU")."""

from __future__ import annotations

import polars as pl

from traceview.model.trace import RANGES
from traceview.normalise.identity import process_of
from traceview.normalise.names import UNNAMED, texts_of
from traceview.normalise.order import by_time
from traceview.normalise.threads import Threads
from traceview.read import raw


def ranges_frame(tables: dict[str, pl.DataFrame], threads: Threads, last: int) -> pl.DataFrame:
    """Return model.RANGES, sorted; a range without an end lasts to `last`, the end of the capture."""
    found = tables.get(raw.NVTX)
    if found is None or found.is_empty():
        return pl.DataFrame(schema=dict(RANGES) | {"name": pl.Enum([]), "domain": pl.Enum([])})
    found = _named(found, tables)
    domains = found.filter(pl.col("eventType") == raw.DOMAIN_CREATED).select("process", "domainId", "name")
    ranges = found.filter(pl.col("eventType").is_in(raw.RANGE_TYPES)).with_columns(
        pl.col("end").is_null().alias("open"),
        pl.max_horizontal(pl.col("end").fill_null(last), "start").alias("end"),
    )
    ranges = by_time(ranges)
    names = domains.unique(["process", "domainId"], keep="first").rename({"name": "domain"})
    domain = ranges.join(names, on=["process", "domainId"], how="left", maintain_order="left").select(
        pl.when(pl.col("domainId") == 0)
        .then(pl.lit(""))
        .otherwise(pl.col("domain").fill_null(pl.format("domain {}", "domainId")))
        .alias("domain")
    )["domain"]
    return ranges.select(
        "start",
        "end",
        _enum(ranges["name"]),
        _enum(domain),
        threads.rows(ranges["globalTid"]),
        "process",
        "open",
    )


def _named(found: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    text = pl.col("text") if "text" in found.columns else pl.lit(None, pl.String)
    ids = found["textId"] if "textId" in found.columns else pl.Series([None] * len(found), dtype=pl.Int64)
    used = ids.unique().drop_nulls().sort()
    looked_up = pl.DataFrame({"textId": ids}).join(
        pl.DataFrame({"textId": used, "looked_up": pl.Series(texts_of(used, tables), dtype=pl.String)}),
        on="textId",
        how="left",
        maintain_order="left",
    )["looked_up"]
    domain = pl.col("domainId").fill_null(0) if "domainId" in found.columns else pl.lit(0, pl.Int64)
    return found.select(
        "start",
        "end",
        "eventType",
        pl.col("globalTid").fill_null(0),
        pl.coalesce(text, pl.lit(looked_up), pl.lit(UNNAMED)).alias("name"),
        domain.alias("domainId"),
        process_of("globalTid").alias("process"),
    )


def _enum(texts: pl.Series) -> pl.Series:
    return texts.cast(pl.Enum(texts.unique(maintain_order=True)))
