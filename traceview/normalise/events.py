"""CUDA events and waits as the streams saw them: records, waits and host synchronizations."""

from __future__ import annotations

import polars as pl

from traceview.model.trace import STREAM_EVENTS
from traceview.normalise.identity import process_of
from traceview.normalise.links import Links
from traceview.read import raw

WAIT = 2  # CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT


def stream_events(tables: dict[str, pl.DataFrame], links: Links) -> pl.DataFrame:
    """Return model.STREAM_EVENTS, in the order of the export."""
    parts = []
    for name in (raw.CUDA_EVENT, raw.SYNCHRONIZATION):
        found = tables.get(name, pl.DataFrame())
        if not found.is_empty():
            parts.append(_part(found, name))
    if not parts:
        return pl.DataFrame(schema=dict(STREAM_EVENTS))
    joined = pl.concat(parts)
    return joined.with_columns(links.rows(joined)).select(list(STREAM_EVENTS))


def _part(found: pl.DataFrame, name: str) -> pl.DataFrame:
    kind = pl.lit("record")
    if name == raw.SYNCHRONIZATION:
        kind = pl.when(pl.col("syncType") == WAIT).then(pl.lit("wait")).otherwise(pl.lit("synchronize"))
    event = pl.col("eventId").fill_null(0) if "eventId" in found.columns else pl.lit(0, pl.Int64)
    return found.select(
        kind.cast(STREAM_EVENTS["kind"]).alias("kind"),
        process_of("globalPid").alias("process"),
        pl.col("contextId").fill_null(0).alias("context"),
        pl.col("streamId").fill_null(0).alias("stream_id"),
        event.alias("event_id"),
        pl.col("correlationId").fill_null(0).cast(pl.UInt32).alias("correlation"),
    )
