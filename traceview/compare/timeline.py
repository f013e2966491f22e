"""The events around the iteration of median length in each capture: what a page draws one above the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from traceview.compare.sample import Sample
from traceview.intervals import Times
from traceview.model import Analysis, Iterations, Trace, Window
from traceview.model_compare import Timeline

MOST = 12_000  # events of one capture: what a browser draws at once without levels of detail
MOST_ITERATIONS = 9
COPIES = ("h2d", "d2h", "d2d")


def timelines(analyses: Sequence[Analysis], samples: Sequence[Sample], *, whole: bool) -> tuple[Timeline, ...]:
    """Return as many iterations around the median one as fit in MOST events, one timeline a capture."""
    return tuple(_timeline(analysis, sample, whole) for analysis, sample in zip(analyses, samples, strict=True))


def _timeline(analysis: Analysis, sample: Sample, whole: bool) -> Timeline:
    start, end = sample.start, sample.start + sample.wall
    middle = int(np.argsort(sample.wall, kind="stable")[(len(sample.wall) - 1) // 2])
    found = analysis.iterations
    process = found.process_id if isinstance(found, Iterations) and not whole else None
    rows = _events(analysis.trace, process)
    first, last = middle, middle + 1
    chosen = _within(rows, start, end, first, last)
    for _ in range(MOST_ITERATIONS // 2):
        wider = max(first - 1, 0), min(last + 1, len(start))
        more = _within(rows, start, end, *wider)
        if len(more) > MOST:
            break
        (first, last), chosen = wider, more
    left_out = max(len(chosen) - MOST, 0)
    chosen = chosen.head(MOST)
    zero = int(start[middle])
    lanes = chosen["lane"].unique(maintain_order=True).sort().to_list()
    names = chosen["name"].unique(maintain_order=True).to_list()
    columns = chosen.select(
        pl.col("lane").replace_strict(lanes, range(len(lanes)), return_dtype=pl.Int64),
        pl.col("start") - zero,
        pl.col("end") - pl.col("start"),
        "look",
        pl.col("name").replace_strict(names, range(len(names)), return_dtype=pl.Int64),
    )
    spans = [(int(start[at]) - zero, int(end[at]) - zero) for at in range(first, last)]
    return Timeline(
        lanes=tuple(lane[2:] for lane in lanes),
        names=tuple(names),
        events=tuple(columns.iter_rows()),
        iterations=tuple(spans),
        first=first,
        middle=middle - first,
        zero_ns=zero,
        left_out=left_out,
    )


def _within(rows: pl.DataFrame, start: Times, end: Times, first: int, last: int) -> pl.DataFrame:
    window = Window(int(start[first]), int(end[last - 1]))
    return rows.filter((pl.col("start") < window.end) & (pl.col("end") > window.start))


def _events(trace: Trace, process: int | None) -> pl.DataFrame:
    """Return every event as lane, start, end, look and name; the first character of a lane orders it."""
    parts = [_gpu(trace), _calls(trace), _ranges(trace)]
    if process is not None:
        parts = [part.filter(pl.col("process") == process) for part in parts]
    return pl.concat([part.drop("process") for part in parts]).sort("start", "end", "lane", "name")


def _gpu(trace: Trace) -> pl.DataFrame:
    stream = pl.Series("label", trace.streams["label"].to_list(), dtype=pl.String)
    device = pl.Series("device", trace.devices["id"].to_list(), dtype=pl.String)
    work = trace.operations
    lane = "0 " + device.gather(work["device"]) + " " + stream.gather(work["stream"])
    kind = pl.col("kind").cast(pl.String)
    copy = pl.when(kind.is_in(COPIES)).then(kind).otherwise(pl.lit("copy"))
    of = pl.col("class").cast(pl.String)
    return work.select(
        pl.Series("lane", lane),
        "start",
        "end",
        pl.when(of == "copy").then(copy).otherwise(of).alias("look"),
        pl.col("name").cast(pl.String),
        pl.col("process"),
    )


def _calls(trace: Trace) -> pl.DataFrame:
    return trace.api.select(
        pl.Series("lane", "2 calls of " + _threads(trace).gather(trace.api["thread"])),
        "start",
        "end",
        ("call_" + pl.col("role").cast(pl.String)).alias("look"),
        pl.col("name").cast(pl.String),
        "process",
    )


def _ranges(trace: Trace) -> pl.DataFrame:
    return trace.ranges.select(
        pl.Series("lane", "1 ranges of " + _threads(trace).gather(trace.ranges["thread"])),
        "start",
        "end",
        pl.lit("range").alias("look"),
        pl.col("name").cast(pl.String),
        "process",
    )


def _threads(trace: Trace) -> pl.Series:
    named = [f"{name or 'thread'} {tid}" for name, tid in trace.threads.select("name", "tid").iter_rows()]
    return pl.Series("thread", named, dtype=pl.String)
