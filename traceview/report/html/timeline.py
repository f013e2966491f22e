"""The rows of the timeline: devices with their bands and streams, processes with their threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceview.intervals import EMPTY, Intervals
from traceview.model import Analysis, Iterations
from traceview.report.html.bands import Bands
from traceview.report.html.book import Book
from traceview.report.html.columns import Columns
from traceview.report.html.detail import ISLANDS, MARK_BYTES, Extra, kept, write
from traceview.report.html.index import Index
from traceview.report.html.lane import Lane, prepare
from traceview.report.html.lanes import HostLanes, StreamLanes, projected_rows
from traceview.report.html.looks import LOOKS
from traceview.report.html.marks import Marks, Names
from traceview.report.html.places import places
from traceview.report.html.rows import Group, Row, device_bands, unions
from traceview.report.html.tally import tally

if TYPE_CHECKING:
    from traceview.model_whatif import Span as PathSpan

SHOWN_ROWS = 16
LEAST_BYTES = 4  # of a mark in full, in the file, even where marks repeat; only to foresee what is needed
AFFORDED = 0.105  # marks of all rows' levels for a byte of the file: marks of a level take 4 to 15 bytes each
HOST_KINDS = ("call", "range")
# What the critical path is made of (model_whatif.PATH), in the looks of what it waits for.
PATH_LOOKS = {
    "compute": "compute",
    "communication": "communication",
    "copy": "copy",
    "memset": "memset",
    "gap": "idle_queued",
    "launch": "idle_launch",
    "host": "idle_host",
    "call": "call_api",
    "wait": "call_sync",
}


@dataclass(frozen=True, slots=True)
class Span:
    """The stretch that the timeline covers, in ns on the capture's clock."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the page needs to draw the timeline: `content` as JSON, packed chunks of columns, names by number."""

    content: dict[str, object]
    chunks: list[str]
    names: list[str]


def origin(analysis: Analysis) -> int:
    """Return the moment from which the page counts time: the first event, or the window's start."""
    return _span(analysis).start


def rows(
    analysis: Analysis,
    names: Names,
    work: Callable[[], Mapping[int, Bands]],
    pool: ThreadPoolExecutor,
    path: Sequence[PathSpan] = (),
) -> list[Group]:
    """Return every row with all its marks; a critical path, where there is one, comes first.

    `work` gives what each device did, as bands.py says. The host's rows are made on another thread meanwhile.
    """
    first = [Group("", "", (_path(path, names),))] if path else []
    if isinstance(analysis.iterations, Iterations):
        first.append(_ruler(analysis.iterations, names))
    # Names get their numbers here, one after the other: the same page every time.
    streams, host = StreamLanes.of(analysis, names), HostLanes.of(analysis, names)
    of_host = pool.submit(lambda: list(host.groups()))
    projected, did = projected_rows(analysis, names), work()
    for device in analysis.devices:
        leading = device_bands(analysis, device, did[device.device], names)
        of_device = (*leading, *projected.get(device.device, ()), *streams.rows(device))
        first.append(Group(device.id, (device.name or "").strip(), of_device))
    return [*first, *of_host.result()]


@dataclass(frozen=True, slots=True)
class Lanes:
    """All rows, their lanes merged into levels, by row id, and where names stand if not every event may fit."""

    groups: Sequence[Group]
    lanes: Mapping[str, Sequence[Lane]]
    index: Future[Index] | None

    @classmethod
    def of(cls, analysis: Analysis, groups: Sequence[Group], budget: int, pool: ThreadPoolExecutor) -> Lanes:
        """Begin to merge the rows as finely as `budget` bytes of the file may hold, on other threads."""
        span = _span(analysis)
        lanes = {row.id: [_lane(row, marks) for marks in row.lanes] for group in groups for row in group.rows}
        every = [lane for of_row in lanes.values() for lane in of_row]
        many = sum(len(lane.marks) for lane in every) * LEAST_BYTES > budget
        index = pool.submit(Index.of, groups) if many else None
        prepare(every, span.start, span.end - span.start, int(budget * AFFORDED), pool)
        return cls(groups, lanes, index)

    @property
    def many(self) -> bool:
        """Are there so many events that a page cannot hold them all?"""
        return self.index is not None

    def every(self) -> list[Lane]:
        """Return all lanes."""
        return [lane for of_row in self.lanes.values() for lane in of_row]

    def fresh(self) -> dict[str, list[Lane]]:
        """Return the lanes when their levels are found, none of them written."""
        return {row: [lane.fresh() for lane in of_row] for row, of_row in self.lanes.items()}


def extra(analysis: Analysis, rows: Lanes, budget: int) -> Extra:
    """Return what a page of `budget` bytes for the timeline has that does not hold every event."""
    span, every, columns = _span(analysis), rows.every(), Columns()
    length = span.end - span.start
    cover = places(analysis, length, [lane.marks for lane in every], int(budget * ISLANDS / MARK_BYTES))
    marks = kept(every, cover)
    index = rows.index.result() if rows.index is not None else Index.of(rows.groups)
    idle = [rows.lanes[row.id][0] for group in rows.groups for row in group.rows if row.kind == "idle"]
    content = {
        "tally": tally(analysis, works(rows.groups), idle, span.start, length, budget, columns),
        "index": index.write(span.start, columns),
    }
    return Extra(columns, content, index.name, cover, marks)


def timeline(
    analysis: Analysis, rows: Lanes, names: Names, budget: int, pool: ThreadPoolExecutor, ahead: Extra | None = None
) -> Timeline:
    """Fit the rows into `budget` bytes of the file; `ahead` is what `extra` gives, if it is known already."""
    span = _span(analysis)
    length = span.end - span.start
    lanes = rows.fresh()
    every = [lane for of_row in lanes.values() for lane in of_row]
    book = Book.of(span.start, budget, pool)
    beside, chunk = write(every, book, lambda: ahead or extra(analysis, rows, budget)) or (None, 0)
    cover = EMPTY if beside is None else beside.cover
    content: dict[str, object] = {
        "span": [0, length],
        "events": sum(row.events for group in rows.groups for row in group.rows),
        "whole": all(lane.whole for lane in every),
        "cover": [[start - span.start, end - span.start] for start, end in zip(*_plain(cover), strict=True)],
        "looks": list(LOOKS),
        "used": _used_looks(every),
        "annotating": _annotating(analysis),
        "groups": [_written(group, lanes) for group in rows.groups],
    }
    if beside is not None:
        content |= {**beside.content, "summary_chunk": chunk}
    return Timeline(content, book.chunks, _used(names, book))


def works(groups: Sequence[Group]) -> list[dict[str, Intervals]]:
    """Return what each device did by class, in the order of Analysis.devices."""
    return [unions(row) for group in groups for row in group.rows if row.kind == "overlap"]


def _used_looks(lanes: Sequence[Lane]) -> list[str]:
    return [LOOKS[look] for look in sorted(set().union(*(lane.looks.tolist() for lane in lanes)))]


def _annotating(analysis: Analysis) -> dict[int, str]:
    """Return each process's thread with the most range time, whose ranges hold for threads without any."""
    frame = analysis.trace.ranges
    totals = (
        frame.group_by("process", "thread")
        .agg((pl.col("end") - pl.col("start")).sum().alias("total"))
        .sort(["total", "thread"], descending=[True, False])
        .unique("process", keep="first", maintain_order=True)
        .sort("process")
    )
    return {process: f"t:{thread}" for process, thread, _ in totals.iter_rows()}


def _plain(cover: tuple[np.ndarray, np.ndarray]) -> tuple[list[int], list[int]]:
    return cover[0].tolist(), cover[1].tolist()


def _lane(row: Row, marks: Marks) -> Lane:
    return Lane(marks.without_zeros(), row.kind not in HOST_KINDS, row.process)


def _used(names: Names, book: Book) -> list[str]:
    """Return the names by number; those that merging left without a mark stay out of the page."""
    used = set(np.unique(np.concatenate(book.names)).tolist()) if book.names else set()
    return [text if number in used else "" for number, text in enumerate(names.texts)]


def _span(analysis: Analysis) -> Span:
    if analysis.trace.window is not None:
        return Span(analysis.trace.window.start, analysis.trace.window.end)
    frames = (analysis.trace.operations, analysis.trace.api, analysis.trace.ranges)
    starts = [int(frame["start"].to_numpy()[0]) for frame in frames if len(frame)]
    ends = [int(frame["end"].to_numpy().max()) for frame in frames if len(frame)]
    return Span(min(starts, default=0), max(ends, default=1))


def _ruler(found: Iterations, names: Names) -> Group:
    each = found.per_iteration
    start = np.array([one.start_ns for one in each], np.int64)
    order = np.argsort(start, kind="stable")
    marks = Marks(
        start,
        np.array([one.end_ns for one in each], np.int64),
        np.array([names.number(one.name) for one in each], np.int64),
        np.array([LOOKS.index("skipped" if one.skipped else "iteration") for one in each], np.int64),
    ).take(order)
    return Group("", "", (Row("ruler", "ruler", "iterations", found.range, (marks,)),))


def _path(spans: Sequence[PathSpan], names: Names) -> Row:
    ordered = sorted(spans, key=lambda one: (one.start_ns, one.end_ns))
    marks = Marks(
        np.array([one.start_ns for one in ordered], np.int64),
        np.array([one.end_ns for one in ordered], np.int64),
        np.array([names.number(one.name or one.kind) for one in ordered], np.int64),
        np.array([LOOKS.index(PATH_LOOKS[one.kind]) for one in ordered], np.int64),
    )
    return Row("ruler", "path", "critical path", "as it ran", (marks,))


def _written(group: Group, lanes: dict[str, list[Lane]]) -> dict[str, object]:
    return {
        "label": group.label,
        "note": group.note,
        "rows": [
            {
                "kind": row.kind,
                "id": row.id,
                "label": row.label,
                "note": row.note,
                "more": row.more or place >= SHOWN_ROWS,
                "process": row.process,
                "part": row.part,
                "events": row.events,
                "lanes": [lane.json() for lane in lanes[row.id]],
            }
            for place, row in enumerate(group.rows)
        ],
    }
