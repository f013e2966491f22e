"""The events around the iteration of median length in each capture: what a page draws one above the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from traceview.comparison.sample import Sample
from traceview.model.analysis import Analysis, Iterations
from traceview.model.comparison import IterationTimeline
from traceview.model.trace import Trace, Window

MOST = 12_000  # events of one capture: what a browser draws at once without levels of detail
MOST_ITERATIONS = 9
COPIES = ("h2d", "d2h", "d2d")


def timelines(analyses: Sequence[Analysis], samples: Sequence[Sample], *, whole: bool) -> tuple[IterationTimeline, ...]:
    """Return as many iterations around the median one as fit in MOST events, one timeline a capture."""
    return tuple(_timeline(analysis, sample, whole) for analysis, sample in zip(analyses, samples, strict=True))


def _timeline(analysis: Analysis, sample: Sample, whole: bool) -> IterationTimeline:
    start, end = sample.start, sample.start + sample.wall
    middle = int(np.argsort(sample.wall, kind="stable")[(len(sample.wall) - 1) // 2])
    found = analysis.iterations
    process = found.process_id if isinstance(found, Iterations) and not whole else None
    for fewer in range(MOST_ITERATIONS // 2, -1, -1):
        first, last = max(middle - fewer, 0), min(middle + fewer + 1, len(start))
        frames = _inside(analysis.trace, process, Window(int(start[first]), int(end[last - 1])))
        if sum(map(len, frames)) <= MOST:
            break
    zero = int(start[middle])
    chosen = _events(analysis.trace, frames)
    lanes = chosen["lane"].unique().sort().to_list()
    names = chosen["name"].unique(maintain_order=True).to_list()
    columns = chosen.select(
        pl.col("lane").replace_strict(lanes, range(len(lanes)), return_dtype=pl.Int64),
        pl.col("start") - zero,
        pl.col("end") - pl.col("start"),
        "look",
        pl.col("name").replace_strict(names, range(len(names)), return_dtype=pl.Int64),
    )
    return IterationTimeline(
        lanes=tuple(lane[2:] for lane in lanes),
        names=tuple(names),
        events=tuple(columns.iter_rows()),
        iterations=tuple((int(start[at]) - zero, int(end[at]) - zero) for at in range(first, last)),
        first=first,
        middle=middle - first,
        zero_ns=zero,
        left_out=sum(map(len, frames)) - len(chosen),
    )


def _inside(trace: Trace, process: int | None, window: Window) -> tuple[pl.DataFrame, ...]:
    """Return the operations, calls and ranges that a window holds or cuts; of one process, or of all."""
    chosen = (pl.col("start") < window.end) & (pl.col("end") > window.start)
    if process is not None:
        chosen &= pl.col("process") == process
    return tuple(frame.filter(chosen) for frame in (trace.operations, trace.api, trace.ranges))


def _events(trace: Trace, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the first MOST events as lane, start, end, look and name; a lane's first character orders it."""
    # Names are dear: no more rows get theirs than can be drawn.
    work, calls, ranges = (frame.head(MOST) for frame in frames)
    parts = [_gpu(trace, work), _calls(trace, calls), _ranges(trace, ranges)]
    return pl.concat(parts).sort("start", "end", "lane", "name").head(MOST)


def _gpu(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    stream = pl.Series("label", trace.streams["label"].to_list(), dtype=pl.String)
    device = pl.Series("device", trace.devices["id"].to_list(), dtype=pl.String)
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
    )


def _calls(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    return calls.select(
        pl.Series("lane", "2 calls of " + _threads(trace).gather(calls["thread"])),
        "start",
        "end",
        ("call_" + pl.col("role").cast(pl.String)).alias("look"),
        pl.col("name").cast(pl.String),
    )


def _ranges(trace: Trace, ranges: pl.DataFrame) -> pl.DataFrame:
    return ranges.select(
        pl.Series("lane", "1 ranges of " + _threads(trace).gather(ranges["thread"])),
        "start",
        "end",
        pl.lit("range").alias("look"),
        pl.col("name").cast(pl.String),
    )


def _threads(trace: Trace) -> pl.Series:
    named = [f"{name or 'thread'} {tid}" for name, tid in trace.threads.select("name", "tid").iter_rows()]
    return pl.Series("thread", named, dtype=pl.String)
