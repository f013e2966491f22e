"""Events around the iteration with the median length of each capture, for the comparison page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from traceview.comparison.sample import Sample
from traceview.model.analysis import Analysis, Iterations
from traceview.model.comparison import IterationTimeline
from traceview.model.trace import Trace, Window

MAX_EVENTS = 12_000  # per capture: a browser draws as many at once without levels of detail
MAX_ITERATIONS = 9
COPIES = ("h2d", "d2h", "d2d")


def median_timelines(
    analyses: Sequence[Analysis], samples: Sequence[Sample], *, whole: bool
) -> tuple[IterationTimeline, ...]:
    """Return one timeline per capture: the iterations around the median one that fit into MAX_EVENTS events.

    `whole` is True if captures are compared as a whole; then the events of all processes are included.
    """
    return tuple(_timeline(analysis, sample, whole) for analysis, sample in zip(analyses, samples, strict=True))


def _timeline(analysis: Analysis, sample: Sample, whole: bool) -> IterationTimeline:
    start, end = sample.start, sample.start + sample.wall
    middle = int(np.argsort(sample.wall, kind="stable")[(len(sample.wall) - 1) // 2])
    iterations = analysis.iterations
    process = iterations.process_id if isinstance(iterations, Iterations) and not whole else None
    for reach in range(MAX_ITERATIONS // 2, -1, -1):
        first, last = max(middle - reach, 0), min(middle + reach + 1, len(start))
        frames = _frames_in_window(analysis.trace, process, Window(int(start[first]), int(end[last - 1])))
        if sum(map(len, frames)) <= MAX_EVENTS:
            break
    zero = int(start[middle])
    events = _first_events(analysis.trace, frames)
    lanes = events["lane"].unique().sort().to_list()
    names = events["name"].unique(maintain_order=True).to_list()
    columns = events.select(
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
        left_out=sum(map(len, frames)) - len(events),
    )


def _frames_in_window(trace: Trace, process: int | None, window: Window) -> tuple[pl.DataFrame, ...]:
    """Return the operations, API calls and ranges that overlap a window, of one process or of all (None)."""
    chosen = (pl.col("start") < window.end) & (pl.col("end") > window.start)
    if process is not None:
        chosen &= pl.col("process") == process
    return tuple(frame.filter(chosen) for frame in (trace.operations, trace.api, trace.ranges))


def _first_events(trace: Trace, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the first MAX_EVENTS events as lane, start, end, look and name; the first character sorts lanes."""
    # Converting names is slow, so only rows that can be drawn get theirs.
    work, calls, ranges = (frame.head(MAX_EVENTS) for frame in frames)
    parts = [_gpu_events(trace, work), _call_events(trace, calls), _range_events(trace, ranges)]
    return pl.concat(parts).sort("start", "end", "lane", "name").head(MAX_EVENTS)


def _gpu_events(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    stream = pl.Series("label", trace.streams["label"].to_list(), dtype=pl.String)
    device = pl.Series("device", trace.devices["id"].to_list(), dtype=pl.String)
    lane = "0 " + device.gather(work["device"]) + " " + stream.gather(work["stream"])
    kind = pl.col("kind").cast(pl.String)
    copy = pl.when(kind.is_in(COPIES)).then(kind).otherwise(pl.lit("copy"))
    work_class = pl.col("class").cast(pl.String)
    return work.select(
        pl.Series("lane", lane),
        "start",
        "end",
        pl.when(work_class == "copy").then(copy).otherwise(work_class).alias("look"),
        pl.col("name").cast(pl.String),
    )


def _call_events(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    return calls.select(
        pl.Series("lane", "2 calls of " + _thread_labels(trace).gather(calls["thread"])),
        "start",
        "end",
        ("call_" + pl.col("role").cast(pl.String)).alias("look"),
        pl.col("name").cast(pl.String),
    )


def _range_events(trace: Trace, ranges: pl.DataFrame) -> pl.DataFrame:
    return ranges.select(
        pl.Series("lane", "1 ranges of " + _thread_labels(trace).gather(ranges["thread"])),
        "start",
        "end",
        pl.lit("range").alias("look"),
        pl.col("name").cast(pl.String),
    )


def _thread_labels(trace: Trace) -> pl.Series:
    labels = [f"{name or 'thread'} {tid}" for name, tid in trace.threads.select("name", "tid").iter_rows()]
    return pl.Series("thread", labels, dtype=pl.String)
