"""The rows of the timeline: devices with their bands and streams, processes with their threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceview.intervals import EMPTY
from traceview.model.analysis import Analysis, Iterations
from traceview.report.timeline.columns import Columns
from traceview.report.timeline.detail import ChunkBudget, Extra, Json, pack_lanes
from traceview.report.timeline.index import Index
from traceview.report.timeline.lanes import HostRows, projected_rows, stream_rows
from traceview.report.timeline.levels import Lane, kept_marks, merged_lanes, places
from traceview.report.timeline.marks import Marks, Names
from traceview.report.timeline.rows import LOOKS, Group, TimelineRow, counter_rows
from traceview.report.timeline.source import PageSource
from traceview.report.timeline.sums import (
    bin_shift,
    device_lanes,
    name_bins,
    packed_sums,
    sums_of_devices,
    sums_of_names,
    tally,
    tally_bins,
)

if TYPE_CHECKING:
    from traceview.model.whatif import PathSpan

MAX_UNFOLDED_ROWS = 16  # rows of a group
MARKS_PER_BYTE = 0.105  # marks of all levels per byte of the file; a mark takes 4 to 15 bytes
KEPT_SHARE = 0.33  # share of the budget for the places in full detail
MARK_BYTES = 12  # bytes of the file for one mark in full detail; limits the places
# The looks of the parts of the critical path (traceview/model/whatif.py).
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
class PackedTimeline:
    """The data of the timeline: `content` as JSON, packed chunks of columns, and names by number."""

    content: dict[str, object]
    chunks: list[str]
    names: list[str]


def origin(analysis: Analysis) -> int:
    """Return the page's zero time: the first event, or the start of the window."""
    return analysis.trace.span.start


def rows(analysis: Analysis, source: PageSource, path: Sequence[PathSpan] = ()) -> list[Group]:
    """Return every row with all its marks, the critical path first."""
    span, names, lanes = source.span, source.names, source.lanes
    groups = [Group("", "", (_path(path, names),))] if path else []
    if isinstance(analysis.iterations, Iterations):
        groups.append(_ruler(analysis.iterations, names))
    host = HostRows.from_analysis(analysis, names, lanes, span.start, span.end)
    projected = projected_rows(analysis, names)
    counters = counter_rows(analysis, names, span.start, span.end)
    if None in counters:
        groups.append(Group("machine", "", tuple(counters[None])))
    for device in analysis.devices:
        leading = (
            TimelineRow("overlap", f"o:{device.id}", "work, by class", "", lanes.overlap(device)),
            TimelineRow("idle", f"d:{device.id}", "idle, by cause", "", (lanes.idle(device),)),
        )
        own = counters.get(device.device, ())
        streams = stream_rows(analysis, device, lanes)
        device_rows = (*leading, *own, *projected.get(device.device, ()), *streams)
        groups.append(Group(device.id, (device.name or "").strip(), device_rows))
    return [*groups, *host.groups()]


@dataclass(frozen=True, slots=True)
class MergedRows:
    """All rows, and the lanes of each row with their levels."""

    groups: Sequence[Group]
    lanes: Mapping[str, Sequence[Lane]]  # lanes by row id
    index: Callable[[int], Index]  # the search index, by the number of names

    @classmethod
    def within(cls, source: PageSource, groups: Sequence[Group], budget: int) -> MergedRows:
        """Merge the rows into levels that fit into `budget` bytes of the file."""
        span, stored = source.span, source.sums
        places = None if stored is None else (stored.rows, stored.places)
        every = [row for group in groups for row in group.rows]
        lanes = merged_lanes(every, span.start, span.end - span.start, int(budget * MARKS_PER_BYTE))
        return cls(
            groups,
            {row.id: mine for row, mine in zip(every, lanes, strict=True)},
            cache(partial(Index.from_groups, groups, zero=span.start, stored=places)),
        )


def timeline(analysis: Analysis, merged: MergedRows, source: PageSource, budget: int) -> PackedTimeline:
    """Pack the rows into `budget` bytes of the file."""
    span, names = source.span, source.names
    chunks = ChunkBudget.from_bytes(span.start, budget)
    every = [lane for lanes in merged.lanes.values() for lane in lanes]
    known = len(names.texts)
    packed, extra, chunk = pack_lanes(
        every, chunks, lambda: _page_extra(analysis, merged, source, every, budget, known)
    )
    cover = EMPTY if extra is None else extra.cover
    remaining = iter(packed)
    places = {row: [lane.json() for lane in islice(remaining, len(lanes))] for row, lanes in merged.lanes.items()}
    content: dict[str, object] = {
        "span": [0, span.length],
        "events": sum(row.events for group in merged.groups for row in group.rows),
        "whole": all(lane.whole for lane in packed),
        "cover": [[start - span.start, end - span.start] for start, end in zip(*_as_lists(cover), strict=True)],
        "looks": list(LOOKS),
        "used": _used_looks(every),
        "annotating": _annotating_threads(analysis),
        "groups": [_group_json(group, places) for group in merged.groups],
    }
    if extra is not None:
        content |= {**extra.content, "summary_chunk": chunk}
    return PackedTimeline(content, chunks.chunks, _used_names(names, chunks))


def _page_extra(
    analysis: Analysis, merged: MergedRows, source: PageSource, every: Sequence[Lane], budget: int, names: int
) -> Extra:
    """Return the parts of a page whose timeline does not fit into `budget` bytes; `names` is the number of names."""
    span, columns, index = source.span, Columns(), merged.index(names)
    length = span.length
    cover = places(analysis, source.worst_calls, length, every, int(budget * KEPT_SHARE / MARK_BYTES))
    shift, name_sums = sums_of_names(merged.groups, span, bin_shift(length, name_bins(merged.groups)), source.sums)
    sums, summed_names = packed_sums(name_sums, shift, length, budget, names, columns)
    devices = device_lanes(merged.groups)
    shift, device_sums = sums_of_devices(
        devices, span, bin_shift(length, tally_bins(len(devices), budget)), source.sums
    )
    content = {
        "tally": tally(device_sums, shift, length, columns),
        "index": index.write(span.start, columns),
        "sums": sums,
    }
    shown = np.union1d(index.name, summed_names)
    return Extra(columns, content, shown, cover, kept_marks(every, cover))


def _used_looks(lanes: Sequence[Lane]) -> list[str]:
    return [LOOKS[look] for look in sorted(set().union(*(lane.looks.tolist() for lane in lanes)))]


def _annotating_threads(analysis: Analysis) -> dict[int, str]:
    """Return the thread with the most range time of each process; it annotates threads without ranges."""
    frame = analysis.trace.ranges
    totals = (
        frame.group_by("process", "thread")
        .agg((pl.col("end") - pl.col("start")).sum().alias("total"))
        .sort(["total", "thread"], descending=[True, False])
        .unique("process", keep="first", maintain_order=True)
        .sort("process")
    )
    return {process: f"t:{thread}" for process, thread, _ in totals.iter_rows()}


def _as_lists(cover: tuple[np.ndarray, np.ndarray]) -> tuple[list[int], list[int]]:
    return cover[0].tolist(), cover[1].tolist()


def _used_names(names: Names, chunks: ChunkBudget) -> list[str]:
    """Return the names by number; unused names are empty."""
    used = set(np.unique(np.concatenate(chunks.names)).tolist()) if chunks.names else set()
    return [text if number in used else "" for number, text in enumerate(names.texts)]


def _ruler(iterations: Iterations, names: Names) -> Group:
    each = iterations.per_iteration
    start = np.array([iteration.start_ns for iteration in each], np.int64)
    order = np.argsort(start, kind="stable")
    marks = Marks(
        start,
        np.array([iteration.end_ns for iteration in each], np.int64),
        np.array([names.number(iteration.name) for iteration in each], np.int64),
        np.array([LOOKS.index("skipped" if iteration.skipped else "iteration") for iteration in each], np.int64),
    ).take(order)
    return Group("", "", (TimelineRow("ruler", "ruler", "iterations", iterations.range, (marks,)),))


def _path(spans: Sequence[PathSpan], names: Names) -> TimelineRow:
    ordered = sorted(spans, key=lambda span: (span.start_ns, span.end_ns))
    marks = Marks(
        np.array([span.start_ns for span in ordered], np.int64),
        np.array([span.end_ns for span in ordered], np.int64),
        np.array([names.number(span.name or span.kind) for span in ordered], np.int64),
        np.array([LOOKS.index(PATH_LOOKS[span.kind]) for span in ordered], np.int64),
    )
    return TimelineRow("ruler", "path", "critical path", "as it ran", (marks,))


def _group_json(group: Group, places: Mapping[str, list[Json]]) -> Json:
    return {
        "label": group.label,
        "note": group.note,
        "rows": [
            {
                "kind": row.kind,
                "id": row.id,
                "label": row.label,
                "note": row.note,
                "more": row.more or place >= MAX_UNFOLDED_ROWS,
                "process": row.process,
                "part": row.part,
                "events": row.events,
                "lanes": places[row.id],
                **({} if row.counter is None else {"counter": row.counter}),
            }
            for place, row in enumerate(group.rows)
        ],
    }
