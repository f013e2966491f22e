"""Rows that cannot be right are left out and counted, never repaired in silence."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from traceview.read import raw

# Sums of a few such times still fit into 64 bits.
LATEST = 1 << 60
RANGE_TYPES = (59, 60)  # push/pop and start/end


@dataclass(frozen=True, slots=True)
class Problems:
    """Lines that every report shows; normalising appends to them."""

    lines: list[str]


def sound_rows(table: str, frame: pl.DataFrame, problems: Problems) -> pl.DataFrame:
    """Keep the rows with a start and an end that is a time and does not lie before it.

    A range may lack its end, as the capture may have ended first; what is no range (a mark, a domain)
    needs no time at all.
    """
    start, end = pl.col("start"), pl.col("end")
    sound = start.is_between(-LATEST, LATEST) & end.is_between(-LATEST, LATEST) & (end >= start)
    if table == raw.NVTX:
        sound = start.is_between(-LATEST, LATEST) & (end.is_null() | (end.is_between(-LATEST, LATEST) & (end >= start)))
        sound = sound | ~pl.col("eventType").is_in(RANGE_TYPES)
    mask = frame.select(sound.fill_null(False)).to_series()
    if mask.all():
        return frame
    left_out = len(frame) - int(mask.sum())
    problems.lines.append(
        f"{table}: {left_out} rows left out: their start or end is not a time, or the end lies before the start"
    )
    return frame.filter(mask)
