"""Rows that cannot be right are left out and counted, never repaired in silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from traceview.intervals import blocks
from traceview.normalise.limits import plausible
from traceview.read import raw

# Twice such a time still fits into 64 bits; `nsys export --ts-normalize=true` counts from 1970, which is 2^60.6.
LATEST = (1 << 62) - 1
# A fortnight in ns: no capture is as long, and sums of thousands of such lengths still fit.
FARTHEST = 1 << 50
FAR = "they lie more than thirteen days from the others"


@dataclass(frozen=True, slots=True)
class Problems:
    """Lines that every report shows; normalising appends to them."""

    lines: list[str]


class Extent(NamedTuple):
    """The first and the last start of a table's rows and their last end, in ns."""

    first: int
    last: int
    end: int


def sound_tables(tables: Mapping[str, pl.DataFrame], problems: Problems) -> dict[str, pl.DataFrame]:
    """Return all tables, those with times without the rows whose times cannot be right."""
    extents = {name: extent for name in raw.ESSENTIAL if name in tables and (extent := _sound_extent(tables[name]))}
    sound = {
        name: sound_rows(name, frame, problems) if name in raw.ESSENTIAL and name not in extents else frame
        for name, frame in tables.items()
    }
    near = _near(sound, extents, problems)
    return {name: plausible(name, frame, problems.lines) for name, frame in near.items()}


def sound_rows(table: str, frame: pl.DataFrame, problems: Problems) -> pl.DataFrame:
    """Keep the rows with a start and an end that is a time and does not lie before it.

    A range may lack its end, as the capture may have ended first; what is no range (a mark, a domain)
    needs no time at all.
    """
    start, end = pl.col("start"), pl.col("end")
    sound = start.is_between(-LATEST, LATEST) & end.is_between(-LATEST, LATEST) & (end >= start)
    if table == raw.NVTX:
        sound = start.is_between(-LATEST, LATEST) & (end.is_null() | (end.is_between(-LATEST, LATEST) & (end >= start)))
        sound = sound | ~pl.col("eventType").is_in(raw.RANGE_TYPES)
    return _kept(table, frame, sound, "their start or end is not a time, or the end lies before the start", problems)


def _sound_extent(frame: pl.DataFrame) -> Extent | None:
    """Return the extent of a table whose rows are all sound; None where one is not, or there is none."""
    if frame.is_empty() or frame["start"].null_count() or frame["end"].null_count():
        return None
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    found = []
    for block in blocks(len(end)):
        if (end[block] < start[block]).any():
            return None
        found.append((start[block].min(), start[block].max(), end[block].max()))
    first, last, ends = zip(*found, strict=True)
    extent = Extent(int(min(first)), int(max(last)), int(max(ends)))
    return extent if extent.first >= -LATEST and extent.end <= LATEST else None


def _near(
    tables: dict[str, pl.DataFrame], extents: Mapping[str, Extent], problems: Problems
) -> dict[str, pl.DataFrame]:
    """Leave out what lies more than FARTHEST from the middle, the median start of all that has a length of time."""
    timed = {name: tables[name] for name in raw.ESSENTIAL if name in tables and not tables[name].is_empty()}
    extremes = [value for name, frame in timed.items() for value in extents.get(name) or _extremes(frame)]
    if not extremes or max(extremes) - min(extremes) <= FARTHEST:
        return tables
    starts = pl.concat([_timed(name, frame)["start"] for name, frame in timed.items()])
    middle = starts.median()
    if not isinstance(middle, float):
        return tables
    low, high = int(middle) - FARTHEST, int(middle) + FARTHEST
    return tables | {name: _between(name, frame, low, high, problems) for name, frame in timed.items()}


def _extremes(frame: pl.DataFrame) -> list[int]:
    found = (frame["start"].min(), frame["start"].max(), frame["end"].max())
    return [value for value in found if isinstance(value, int)]


def _timed(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(pl.col("eventType").is_in(raw.RANGE_TYPES)) if table == raw.NVTX else frame


def _between(table: str, frame: pl.DataFrame, low: int, high: int, problems: Problems) -> pl.DataFrame:
    start, end = pl.col("start").is_between(low, high), pl.col("end").is_between(low, high)
    if table != raw.NVTX:
        return _kept(table, frame, start & end, FAR, problems)
    of_range = pl.col("eventType").is_in(raw.RANGE_TYPES)
    frame = _kept(table, frame, ~of_range | (start & (end | pl.col("end").is_null())), FAR, problems)
    # What is no range needs no time, but must not say that the capture lasted for years.
    return frame.with_columns(pl.when(start).then("start").alias("start"), pl.when(end).then("end").alias("end"))


def _kept(table: str, frame: pl.DataFrame, sound: pl.Expr, why: str, problems: Problems) -> pl.DataFrame:
    mask = frame.select(sound.fill_null(False)).to_series()
    if mask.all():
        return frame
    left_out = len(frame) - int(mask.sum())
    problems.lines.append(f"{table}: {left_out} rows left out: {why}")
    return frame.filter(mask)
