"""The Trace of a time window, read from those parts of an export that it needs.

It holds every row that a measure of the window needs:

- operations that overlap the window, or whose call does; NEIGHBOURS of each device on each side; for each stream
  the last one before the window and the first one after it;
- the calls of these operations, all calls from the earliest launch of an operation in the window to the next
  operation of each device after it, and NEIGHBOURS of each thread on each side;
- whole: devices, streams, threads, ranges, allocations and GPU metrics, so that their row numbers are those of the
  capture, and the evidence on host threads.

Measures count only what is inside Trace.window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from polars.dataframe.group_by import GroupBy

from traceview.intervals import Times
from traceview.model.trace import Trace, Window
from traceview.normalise import WholeCapture, normalise
from traceview.normalise.devices import GPU_TABLES, RAW_COLUMNS
from traceview.normalise.links import Links
from traceview.normalise.operations import stream_keys
from traceview.normalise.threads import process_of
from traceview.read import raw
from traceview.read.raw import RawCapture
from traceview.read.sqlite.parts import PAGES_PER_PART, PartedTable
from traceview.read.sqlite.reader import read_in_parts
from traceview.slices.survey import (
    CORRELATION,
    LINKED_TABLES,
    NO_NAMES,
    PARTED_TABLES,
    TableSurvey,
    extent,
    survey_tables,
)

# Operations of each device, and calls of each thread, on each side of the window: chains of kernels cross its borders.
NEIGHBOURS = 128
KEYS = {"process": pl.Int32, "correlation": pl.UInt32}


@dataclass(frozen=True)
class SliceSource:
    """An SQLite export of which any time window can be read; it can be pickled.

    `rest` has the tables that every window reads whole.
    """

    tables: Mapping[str, PartedTable | pl.DataFrame]
    surveys: Mapping[str, TableSurvey]
    rest: RawCapture
    whole: WholeCapture

    @classmethod
    def open(cls, path: Path, pages_per_part: int = PAGES_PER_PART) -> SliceSource:
        """Survey an export. Raises ReportError, or NotInPartsError if it must be read as a whole."""
        capture, parted = read_in_parts(path, PARTED_TABLES, pages_per_part)
        frames = {name: frame for name, frame in capture.tables.items() if name in PARTED_TABLES and frame.width}
        tables = {name: parted.get(name, frame) for name, frame in frames.items()}
        surveys = survey_tables(tables)
        ids = {name: surveys[name].ids.select(RAW_COLUMNS).unique() for name in GPU_TABLES if name in surveys}
        no_ids = pl.Series([], dtype=pl.Int64)
        calls = surveys[raw.RUNTIME].ids["globalTid"].unique() if raw.RUNTIME in surveys else no_ids
        names = surveys[raw.KERNEL].names if raw.KERNEL in surveys else NO_NAMES
        others = {name: frame for name, frame in capture.tables.items() if name not in frames}
        work, every = extent(surveys, GPU_TABLES), extent(surveys)
        whole, rest = WholeCapture.build(replace(capture, tables=others), ids, calls, names, work, every.end)
        rows = {name: surveys[name].rows if name in surveys else len(frame) for name, frame in capture.tables.items()}
        info = replace(whole.trace.info, tables=rows)
        return cls(tables, surveys, rest, replace(whole, trace=replace(whole.trace, info=info)))

    @property
    def resident(self) -> Trace:
        """The trace without operations and calls."""
        return self.whole.trace

    @cached_property
    def extents(self) -> tuple[dict[int, Window], dict[int, Window]]:
        """The time from the first start to the last end of each device and of each stream, by row."""
        works = [self.surveys[name].ids for name in GPU_TABLES if name in self.surveys]
        keys = stream_keys(self.whole.located.devices, self.whole.located.streams)
        raw_ids = pl.concat(works).with_columns(process_of("globalPid").alias("process"))
        located = raw_ids.join(keys, on=["process", *RAW_COLUMNS[1:]])
        times = pl.col("first").min(), pl.col("end").max()
        devices, streams = (located.group_by(name).agg(times).sort(name).rows() for name in ("device", "stream"))
        return {row: Window(*time) for row, *time in devices}, {row: Window(*time) for row, *time in streams}

    def trace(self, window: Window) -> Trace:
        """Return the trace of a time window."""
        return WindowReader(self, window).trace()


class _Run(NamedTuple):
    """Adjoining parts of a table, with the columns process and correlation. `groups` are RawCapture.shapes."""

    first: int
    stop: int
    frame: pl.DataFrame
    groups: pl.DataFrame | None


class WindowReader:
    """Reads the rows of one window. `runs` has what was read of each table."""

    def __init__(self, source: SliceSource, window: Window) -> None:
        self.source, self.window = source, window
        self.runs: dict[str, list[_Run]] = {name: [] for name in source.tables}

    def trace(self) -> Trace:
        """Return the trace of the window."""
        work = [name for name in GPU_TABLES if name in self.runs]
        for name in work:
            self._read(name, self._parts_of_work(name))
        near = {name: self._rows(name).filter(self._are_near(name)) for name in work}
        calls = self._calls(near) if raw.RUNTIME in self.runs else pl.DataFrame(schema=KEYS)
        frames = {name: self._with_queued(name, frame, calls) for name, frame in near.items()}
        frames |= {name: self._linked(name, calls) for name in LINKED_TABLES if name in self.runs}
        if raw.RUNTIME in self.runs:
            frames[raw.RUNTIME] = calls
        tables = dict(self.source.rest.tables) | {name: frame.drop(KEYS) for name, frame in frames.items()}
        shapes = [run.groups for run in self.runs.get(raw.KERNEL, ()) if run.groups is not None]
        capture = replace(self.source.rest, tables=tables, shapes=pl.concat(shapes) if shapes else None)
        return normalise(capture, self.source.whole).with_window(self.window)

    def _parts_of_work(self, name: str) -> Times:
        """Return the parts with work in the window, those beside them, and the nearest with work of each stream."""
        survey, window = self.source.surveys[name], self.window
        inside = survey.overlapping(window.start, window.end)
        beside = [inside.min() - 1, inside.max() + 1] if len(inside) else []
        nearest = self._nearest(survey.ids.group_by(RAW_COLUMNS))
        parts = np.concatenate([inside, nearest, np.array(beside, np.int64)])
        return np.unique(parts[(parts >= 0) & (parts < len(survey.parts))])

    def _nearest(self, groups: GroupBy) -> Times:
        """Return the last part with rows of each group before the window, and the first after it."""
        before = pl.col("part").filter(pl.col("first") < self.window.start).max()
        after = pl.col("part").filter(pl.col("last") >= self.window.end).min()
        parts = groups.agg(before=before, after=after)
        return pl.concat([parts["before"], parts["after"]]).drop_nulls().to_numpy()

    def _read(self, name: str, parts: Times) -> bool:
        """Read the parts that were not read before, and return whether there are any."""
        table, runs = self.source.tables[name], self.runs[name]
        missing = np.setdiff1d(parts, [part for run in runs for part in range(run.first, run.stop)])
        process = process_of("globalTid" if name == raw.RUNTIME else "globalPid").alias("process")
        correlation = pl.col(CORRELATION).cast(pl.UInt32, strict=False).fill_null(0).alias("correlation")
        for adjoining in np.split(missing, np.flatnonzero(np.diff(missing) != 1) + 1) if len(missing) else ():
            first, stop = int(adjoining[0]), int(adjoining[-1]) + 1
            frame, groups = (table, None) if isinstance(table, pl.DataFrame) else table.read(first, stop)
            if groups is not None:
                before = sum(len(run.groups) for run in runs if run.groups is not None)
                frame = frame.with_columns(pl.col(raw.SHAPE) + before)
            runs.append(_Run(first, stop, frame.with_columns(process, correlation), groups))
        return len(missing) > 0

    def _rows(self, name: str) -> pl.DataFrame:
        """Return the rows that were read, in the order of the table."""
        frames = [run.frame for run in sorted(self.runs[name], key=lambda run: run.first)]
        if frames:
            return pl.concat(frames)
        table = self.source.tables[name]
        return (table if isinstance(table, pl.DataFrame) else table.no_rows()).with_columns(
            pl.lit(None, kind).alias(column) for column, kind in KEYS.items()
        )

    def _are_near(self, name: str) -> pl.Series:
        """Return a mask of the work in the window, and of that beside it which measures look at."""
        rows, window = self._rows(name), self.window
        start, end = pl.col("start"), pl.col("end")
        inside = (start < window.end) & ((end > window.start) | (start >= window.start))
        places = rows.select(
            *RAW_COLUMNS,
            row=pl.int_range(pl.len()),
            place=pl.when(inside).then(0).when(start < window.start).then(-1).otherwise(1),
        )
        near = (places["place"] == 0).to_numpy().copy()
        for place, nearest in ((-1, pl.Expr.tail), (1, pl.Expr.head)):
            beside = places.filter(pl.col("place") == place)
            for columns, count in ((("globalPid", "deviceId"), NEIGHBOURS), (RAW_COLUMNS, 1)):
                chosen = beside.group_by(columns).agg(nearest(pl.col("row"), count))["row"].explode(empty_as_null=False)
                near[chosen.to_numpy()] = True
        return pl.Series(near)

    def _calls(self, near: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        """Return the calls that launched this work, and all calls while the host prepared the work of the window."""
        name, window = raw.RUNTIME, self.window
        survey = self.source.surveys[name]
        columns = [*KEYS, "start", "deviceId"]
        work = pl.concat([frame.select(columns) for frame in near.values()]) if near else pl.DataFrame(schema=columns)
        threads = survey.ids.group_by("globalTid")
        self._read(name, np.union1d(survey.overlapping(window.start, window.end), self._nearest(threads)))
        self._read(name, survey.linked("globalTid", work))
        starts, launch = self._rows(name)["start"].to_numpy(), Links.from_api(self._rows(name)).rows(work)
        launches = launch.filter(work["start"].is_between(window.start, window.end, closed="left"))
        first = min([window.start, *starts[launches.drop_nulls().to_numpy()].tolist()])
        after = work.filter(pl.col("start") >= window.end).group_by("process", "deviceId").agg(pl.col("start").min())
        last = max([window.end, *after["start"].to_list()])
        if self._read(name, survey.overlapping(first, last)):
            launch = Links.from_api(self._rows(name)).rows(work)
        rows = self._rows(name)
        start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
        chosen = (start < last) & ((end > first) | (start >= first))
        chosen[launch.drop_nulls().to_numpy()] = True
        for beside, nearest in ((end <= first, pl.Expr.tail), (start >= last, pl.Expr.head)):
            numbered = rows.select("globalTid", row=pl.int_range(pl.len())).filter(pl.Series(beside))
            near_calls = numbered.group_by("globalTid").agg(nearest(pl.col("row"), NEIGHBOURS))["row"]
            chosen[near_calls.explode(empty_as_null=False).to_numpy()] = True
        return rows.filter(pl.Series(chosen))

    def _with_queued(self, name: str, near: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
        """Return the work near the window, and that after it which one of these calls launched."""
        survey = self.source.surveys[name]
        later = survey.parts.filter(pl.col("last") >= self.window.end)["part"].to_numpy()
        self._read(name, np.intersect1d(survey.linked("globalPid", calls), later))
        rows = self._rows(name)
        late = np.flatnonzero((rows["start"] >= self.window.end).to_numpy())
        queued = late[Links.from_api(calls).rows(rows[late]).is_not_null().to_numpy()]
        chosen = self._are_near(name).to_numpy().copy()
        chosen[queued] = True
        return rows.filter(pl.Series(chosen))

    def _linked(self, name: str, calls: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of a table without times that belong to these calls."""
        self._read(name, self.source.surveys[name].linked("globalPid", calls))
        rows = self._rows(name)
        return rows.filter(Links.from_api(calls).rows(rows).is_not_null())
