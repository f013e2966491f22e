"""The Trace of a time window, read from those parts of an export that it needs.

It holds every row that a measure of the window needs:

- operations that overlap the window, or whose call does; NEIGHBOURS of each device on each side; for each stream
  the last one before the window and the first one after it;
- the calls of these operations, all calls from the earliest launch of an operation in the window to the next
  operation of each device after it, all calls during gaps that end in the window, and NEIGHBOURS of each thread on each
  side;
- whole: devices, streams, threads, ranges, allocations and GPU metrics, so that their row numbers are those of the
  capture, and the evidence on host threads.

Measures count only what is inside Trace.window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.dataframe.group_by import GroupBy

from traceview.engine.part import NEIGHBOURS
from traceview.engine.survey import (
    CORRELATION,
    LINKED_TABLES,
    PARTED_TABLES,
    PARTS_AT_ONCE,
    KeyBlocks,
    NotInPartsError,
    Table,
    TableSurvey,
    event_summary,
    extent,
    survey_tables,
    with_corrected_times,
)
from traceview.intervals import Times
from traceview.model.trace import Trace, Window
from traceview.normalise import SeveralClocksError, WholeCapture, normalise
from traceview.normalise.api import KEYS, Links, with_keys, without_traced_graphs
from traceview.normalise.devices import GPU_TABLES, RAW_COLUMNS, TIMED_TABLES, common_offset
from traceview.normalise.operations import stream_keys
from traceview.normalise.threads import process_of
from traceview.read import raw
from traceview.read.raw import RawCapture
from traceview.read.sqlite.decoder import PAGES_PER_PART, PartedTable
from traceview.read.sqlite.reader import read_in_parts
from traceview.workers import Workers

DEVICE_COLUMNS = ("globalPid", "deviceId")


@dataclass(frozen=True)
class PartSource:
    """An SQLite export of which any time window can be read; it can be pickled.

    `rest` has the tables that every window reads whole. The times of GPU work in `surveys` are on the host's clock,
    and `offset` ns smaller than in `tables`.
    """

    tables: Mapping[str, Table]
    surveys: Mapping[str, TableSurvey]
    rest: RawCapture
    whole: WholeCapture
    offset: int = 0

    @classmethod
    def open(
        cls,
        path: Path,
        pages_per_part: int = PAGES_PER_PART,
        store: Path | None = None,
        workers: Workers | None = None,
    ) -> PartSource:
        """Survey an export. Raises ReportError, or NotInPartsError if it must be read as a whole.

        With `store`, a folder, the survey writes a compact copy there, from which windows are read: a file that is
        larger than memory is then read once. With `workers`, these processes survey it.
        """
        capture, parted = read_in_parts(path, PARTED_TABLES, pages_per_part)
        frames = {name: frame for name, frame in capture.tables.items() if name in PARTED_TABLES and frame.width}
        in_parts = {name: parted.get(name, frame) for name, frame in frames.items()}
        traced, graphs = 0, in_parts.get(raw.GRAPH)
        if graphs is not None and raw.KERNEL in in_parts:
            in_parts[raw.GRAPH], traced = _without_traced_graphs(graphs, in_parts[raw.KERNEL])
        surveys, tables = survey_tables(in_parts, store, workers)
        others = {name: frame for name, frame in capture.tables.items() if name not in frames}
        try:
            whole, rest = WholeCapture.build(capture._replace(tables=others), event_summary(surveys))
        except SeveralClocksError as error:
            raise NotInPartsError(str(error)) from None
        rows = {name: surveys[name].rows if name in surveys else len(frame) for name, frame in capture.tables.items()}
        if traced:
            rows[raw.GRAPH] += traced
        info = replace(whole.trace.info, tables=rows)
        offset = common_offset(whole.located.devices.frame) or 0
        surveys = with_corrected_times(surveys, offset) if offset else surveys
        return cls(tables, surveys, rest, whole._replace(trace=replace(whole.trace, info=info)), offset)

    @property
    def events(self) -> int:
        """The number of events that windows read: GPU work and calls."""
        return sum(self.surveys[name].rows for name in TIMED_TABLES if name in self.surveys)

    @property
    def resident(self) -> Trace:
        """The trace without operations and calls."""
        return self.whole.trace

    @cached_property
    def extents(self) -> tuple[dict[int, Window], dict[int, Window], Window]:
        """The time from the first start to the last end of each device and each stream, by row, and of all events."""
        works = [self.surveys[name].ids for name in GPU_TABLES if name in self.surveys]
        keys = stream_keys(self.whole.located.devices, self.whole.located.streams)
        raw_ids = pl.concat(works).with_columns(process_of("globalPid").alias("process"))
        located = raw_ids.join(keys, on=["process", *RAW_COLUMNS[1:]])
        times = pl.col("first").min(), pl.col("end").max()
        devices, streams = (located.group_by(name).agg(times).sort(name).rows() for name in ("device", "stream"))
        events = extent(self.surveys)
        ranges = self.resident.ranges.select(first=pl.col("start").min(), last=pl.col("end").max()).drop_nulls().rows()
        for first, last in ranges:
            events = Window(min(events.start, first), max(events.end, last))
        return {row: Window(*time) for row, *time in devices}, {row: Window(*time) for row, *time in streams}, events

    def trace(self, window: Window) -> Trace:
        """Return the trace of a time window."""
        return WindowReader(self, window).trace()


def _without_traced_graphs(
    graphs: PartedTable | pl.DataFrame, kernels: PartedTable | pl.DataFrame
) -> tuple[PartedTable | pl.DataFrame, int]:
    """Return a table without the graphs whose kernels were also traced, and their number.

    All parts must agree on them, and a part need not have their kernels.
    """
    rows = graphs if isinstance(graphs, pl.DataFrame) else graphs.read(0, len(graphs.parts))[0]
    kept = without_traced_graphs(rows, _key_columns(kernels))
    return (graphs, 0) if len(kept) == len(rows) else (kept, len(rows) - len(kept))


def _key_columns(kernels: PartedTable | pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the columns that identify launches, some parts of a table at a time."""
    if isinstance(kernels, pl.DataFrame):
        yield kernels
    else:
        some, count = kernels.with_columns(("globalPid", CORRELATION)), len(kernels.parts)
        for first in range(0, count, PARTS_AT_ONCE):
            yield some.read(first, min(first + PARTS_AT_ONCE, count))[0]


class _Run(NamedTuple):
    """Adjoining parts of a table, with the columns process and correlation. `groups` are RawCapture.shapes."""

    first: int
    stop: int
    frame: pl.DataFrame
    groups: pl.DataFrame | None


class _Calls(NamedTuple):
    """Calls that were read and their links by process and correlation; the chosen ones and their keys."""

    rows: pl.DataFrame
    links: Links
    chosen: NDArray[np.bool_]
    keys: KeyBlocks
    begun: KeyBlocks  # those of the chosen calls that begin in the window or after it

    def launched(self, rows: pl.DataFrame) -> NDArray[np.bool_]:
        """Return a mask of the rows that belong to a chosen call."""
        call = self.links.rows(rows)
        belong: NDArray[np.bool_] = (
            call.is_not_null().to_numpy() & np.append(self.chosen, False)[call.fill_null(-1).to_numpy()]
        )
        return belong


class WindowReader:
    """Reads the rows of one window. `runs` has what was read of each table."""

    def __init__(self, source: PartSource, window: Window) -> None:
        self.source, self.window = source, window
        self.runs: dict[str, list[_Run]] = {name: [] for name in source.tables}

    def trace(self) -> Trace:
        """Return the trace of the window."""
        near = {name: self._near_work(name) for name in GPU_TABLES if name in self.runs}
        calls = self._calls(near)
        frames = {name: self._with_queued(name, chosen, calls) for name, chosen in near.items()}
        frames |= {name: self._linked(name, calls) for name in LINKED_TABLES if name in self.runs}
        if raw.RUNTIME in self.runs:
            frames[raw.RUNTIME] = _chosen_rows(calls.rows, calls.chosen)
        tables = dict(self.source.rest.tables) | {name: frame.drop(KEYS) for name, frame in frames.items()}
        shapes = [run.groups for run in self.runs.get(raw.KERNEL, ()) if run.groups is not None]
        capture = self.source.rest._replace(tables=tables, shapes=pl.concat(shapes) if shapes else None)
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
        process = "globalTid" if name == raw.RUNTIME else "globalPid"
        for adjoining in np.split(missing, np.flatnonzero(np.diff(missing) != 1) + 1) if len(missing) else ():
            first, stop = int(adjoining[0]), int(adjoining[-1]) + 1
            frame, groups = (table, None) if isinstance(table, pl.DataFrame) else table.read(first, stop)
            if groups is not None:
                before = sum(len(run.groups) for run in runs if run.groups is not None)
                frame = frame.with_columns(pl.col(raw.SHAPE) + before)
            if self.source.offset and name in GPU_TABLES:
                frame = frame.with_columns(pl.col(raw.TIMES) - self.source.offset)
            runs.append(_Run(first, stop, with_keys(frame, process), groups))
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

    def _near_work(self, name: str) -> NDArray[np.bool_]:
        """Return a mask of the operations in the window, and of the neighbouring ones that measures need."""
        self._read(name, self._parts_of_work(name))
        return self._are_near(self._rows(name), DEVICE_COLUMNS, RAW_COLUMNS)

    def _are_near(self, rows: pl.DataFrame, *groups: Sequence[str], window: Window | None = None) -> NDArray[np.bool_]:
        """Return a mask of the rows in a window, and of those beside it that are nearest in their group.

        The first grouping counts NEIGHBOURS on each side, the others one.
        """
        first, last = (window or self.window).start, (window or self.window).end
        start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
        chosen = (start < last) & ((end > first) | (start >= first))
        for beside, nearest in (((start < first) & ~chosen, pl.Expr.tail), (start >= last, pl.Expr.head)):
            places = np.flatnonzero(beside)
            for columns, count in zip(groups, (NEIGHBOURS, 1), strict=False):
                members = rows.select(columns)[places].with_columns(row=places).group_by(columns)
                chosen[members.agg(nearest(pl.col("row"), count))["row"].explode().drop_nulls().to_numpy()] = True
        return chosen

    def _calls(self, near: Mapping[str, NDArray[np.bool_]]) -> _Calls:
        """Return the calls that launched this work, and all calls while the host prepared the work of the window."""
        name, window = raw.RUNTIME, self.window
        if name not in self.runs:
            nothing = pl.DataFrame(schema={**KEYS, "start": pl.Int64})
            return _Calls(nothing, Links.from_api(nothing), np.zeros(0, np.bool_), KeyBlocks({}), KeyBlocks({}))
        survey, columns = self.source.surveys[name], [*KEYS, "start", "end", "deviceId"]
        work = pl.concat([_chosen_rows(self._rows(own).select(columns), chosen) for own, chosen in near.items()])
        inside = survey.overlapping(window.start, window.end)
        linked, nearest = (
            survey.linked("globalTid", KeyBlocks.from_rows(work)),
            self._nearest(survey.ids.group_by("globalTid")),
        )
        self._read(name, np.concatenate([inside, linked, nearest]))
        rows = self._rows(name)
        links = Links.from_api(rows)
        launch = links.rows(work)
        launches = launch.filter(work["start"].is_between(window.start, window.end, closed="left")).drop_nulls()
        idle = self._idle_around(work)
        first = rows["start"].to_numpy()[launches.to_numpy()].min(initial=idle.start)
        prepared = Window(int(first), idle.end)
        if self._read(name, survey.overlapping(prepared.start, prepared.end)):
            rows = self._rows(name)
            links = Links.from_api(rows)
            launch = links.rows(work)
        chosen = self._are_near(rows, ("globalTid",), window=prepared)
        chosen[launch.drop_nulls().to_numpy()] = True
        every, begun = (
            KeyBlocks.from_rows(_chosen_rows(rows.select(list(KEYS)), some))
            for some in (chosen, chosen & (rows["start"] >= window.start).to_numpy())
        )
        return _Calls(rows, links, chosen, every, begun)

    def _idle_around(self, work: pl.DataFrame) -> Window:
        """Return the window with the gaps of devices that reach into it from before, and the gaps that follow it."""
        first, last = self.window.start, self.window.end
        pairs = self.source.whole.located.devices.pairs
        nonempty = work.filter(pl.col("end") > pl.col("start")).join(pairs, on=["process", "deviceId"])
        edges = nonempty.group_by("device").agg(
            reach=pl.col("end").filter(pl.col("start") < first).max(),
            works=pl.col("start").is_between(first, last, closed="left").any(),
            following=pl.col("start").filter(pl.col("start") >= last).min(),
        )
        before = edges.filter("works")["reach"].drop_nulls().to_list()
        return Window(min([first, *before]), max([last, *edges["following"].drop_nulls().to_list()]))

    def _with_queued(self, name: str, near: NDArray[np.bool_], calls: _Calls) -> pl.DataFrame:
        """Return the work near the window, and other work that one of these calls launched.

        Work before the window counts if its call begins in the window: the clocks of GPU and host differ.
        """
        survey = self.source.surveys[name]
        later = survey.parts.filter(pl.col("last") >= self.window.end)["part"].to_numpy()
        linked = np.intersect1d(survey.linked("globalPid", calls.keys), later)
        if self._read(name, np.union1d(linked, survey.linked("globalPid", calls.begun))):
            near = self._near_work(name)
        rows = self._rows(name)
        other = np.flatnonzero(~near)
        call = calls.links.rows(rows[other]).fill_null(-1).to_numpy()
        begins = np.append(calls.rows["start"].to_numpy(), self.window.start - 1)[call]
        is_late = rows["start"].to_numpy()[other] >= self.window.end
        fits = np.append(calls.chosen, False)[call] & (is_late | (begins >= self.window.start))
        near[other[fits]] = True
        return _chosen_rows(rows, near)

    def _linked(self, name: str, calls: _Calls) -> pl.DataFrame:
        """Return the rows of a table without times that belong to these calls."""
        self._read(name, self.source.surveys[name].linked("globalPid", calls.keys))
        rows = self._rows(name)
        return rows.filter(pl.Series(calls.launched(rows)))


def _chosen_rows(rows: pl.DataFrame, chosen: NDArray[np.bool_]) -> pl.DataFrame:
    """Return the rows of a mask; without a copy if they follow each other."""
    places = np.flatnonzero(chosen)
    if len(places) and places[-1] - places[0] + 1 == len(places):
        return rows[int(places[0]) : int(places[-1]) + 1]
    return rows.filter(pl.Series(chosen))
