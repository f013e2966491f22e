"""The timeline of a page: every event where the byte budget allows, else levels and the places that matter.

The first chunk shows every row at a glance. The chunks behind it go from coarse to fine, so that a page of any
size draws at once and sharpens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import cached_property
from itertools import islice, product
from math import inf
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import Times, blocks
from traceview.model.frozen import dataclass
from traceview.report.assets import pack
from traceview.report.columns import Columns, Packed
from traceview.report.json import values_of
from traceview.report.timeline.inputs import PageInputs
from traceview.report.timeline.levels import Lane, Level, lanes_of_rows, significant_bits
from traceview.report.timeline.marks import Marks, Names, Numbers, counted
from traceview.report.timeline.places import kept_marks, places
from traceview.report.timeline.rows import Group
from traceview.report.timeline.sums import NameSums, packed_sums, packed_tally, sums_of_names
from traceview.report.timeline.work import LOOKS

MAX_UNFOLDED_ROWS = 16  # rows of a group
MARKS_PER_BYTE = 0.105  # marks of all levels per byte of the file; a mark takes 4 to 15 bytes
KEPT_SHARE = 0.33  # share of the budget for the places in full detail
MARK_BYTES = 12  # bytes of the file for one mark in full detail; limits the places
MAX_UNPACKED = 7  # bytes of browser memory per byte of the budget
CHUNK_BYTES = 1_000_000  # bytes of memory; the page unpacks one chunk at a time
MIN_RATIO_SHARE = 0.9  # share of the last packing ratio; marks rarely pack better, and packing takes time
SAMPLE = 1 << 14  # marks of a lane that are packed to estimate the size of the lane
GPU_FINER = 2  # doublings by which the rows of the GPU are finer than those of the host
# The share of the remaining budget for one level, by on_gpu: the GPU leaves some of it for the host.
SHARES = {True: 2 / 3, False: 1.0}

Json = dict[str, Any]
SEARCHED = ("ruler", "stream", "call", "range", "sample")
MAX_PLACES_OF_NAME = 128
MAX_PLACES = 120_000  # limit for the places of all names
ALL_EVENTS = -1  # the width of a rare name: each of its events is a place
MAX_BITS = 64


class PackedTimeline(NamedTuple):
    """The data of the timeline: `content` as JSON, packed chunks of columns, and names by number."""

    content: dict[str, object]
    chunks: list[str]
    names: list[str]


@dataclass(frozen=True)
class Timeline:
    """All rows, and their lanes with levels of detail."""

    inputs: PageInputs
    names: Names
    groups: Sequence[Group]
    lanes: Sequence[Sequence[Lane]]  # the lanes of each row, group by group

    @classmethod
    def from_rows(cls, inputs: PageInputs, names: Names, groups: Sequence[Group], budget: int) -> Timeline:
        """Merge the marks of the rows into levels that fit into `budget` bytes of the file."""
        rows, span = [row for group in groups for row in group.rows], inputs.span
        return cls(inputs, names, groups, lanes_of_rows(rows, span.start, span.length, int(budget * MARKS_PER_BYTE)))

    @cached_property
    def index(self) -> Index:
        """Places of each name, for the search."""
        return Index.from_groups(self.groups, len(self.names.texts), self.inputs.span.start)

    @cached_property
    def sums(self) -> tuple[int, list[NameSums]]:
        """The sums of names in each row, for areas."""
        return sums_of_names(self.groups, self.inputs.span)

    def packed(self, budget: int) -> PackedTimeline:
        """Return as much of the timeline as fits into `budget` bytes of the file."""
        span, chunks = self.inputs.span, Chunks(self.inputs.span.start, budget, budget * MAX_UNPACKED)
        packed = [PackedLane(lane, list(lane.levels)) for lanes in self.lanes for lane in lanes]
        pack_start(packed, chunks)
        content: dict[str, object] = {
            "span": [0, span.length],
            "events": sum(row.events for group in self.groups for row in group.rows),
            "whole": all(lane.whole for lane in packed),
            "cover": [],
            "looks": list(LOOKS),
            "used": [LOOKS[look] for look in sorted({int(look) for lane in packed for look in lane.lane.marks.looks})],
            "annotating": _annotating_threads(self.inputs.analysis.trace.ranges),
        }
        beside: Json = {} if content["whole"] else self._pack_beside(packed, chunks, budget)
        pack_levels(packed, chunks)
        remaining = iter(packed)
        lanes = iter([[lane.json() for lane in islice(remaining, len(lanes))] for lanes in self.lanes])
        content["groups"] = [_group_json(group, lanes) for group in self.groups]
        names = set(np.unique(np.concatenate(chunks.names)).tolist()) if chunks.names else set()
        texts = [text if number in names else "" for number, text in enumerate(self.names.texts)]
        return PackedTimeline(content | beside, chunks.chunks, texts)

    def _pack_beside(self, lanes: Sequence[PackedLane], chunks: Chunks, budget: int) -> Json:
        """Pack what a page has that lacks events: places of names, sums, and the most important places in full."""
        every, columns, span = [lane.lane for lane in lanes], Columns(), self.inputs.span
        cover = places(self.inputs, every, int(budget * KEPT_SHARE / MARK_BYTES))
        shift, sums = self.sums
        summed, names = packed_sums(sums, shift, span.length, budget, len(self.names.texts), columns)
        content = {
            "cover": (np.stack(cover, axis=1) - span.start).tolist(),
            "tally": packed_tally(self.inputs, self.groups, budget, columns),
            "index": self.index.write(span.start, columns),
            "sums": summed,
            "summary_chunk": chunks.add_columns(columns, np.union1d(self.index.name, names)),
        }
        partial = [(lane, kept) for lane, kept in zip(lanes, kept_marks(every, cover), strict=True) if not lane.whole]
        for (lane, _), place in zip(partial, chunks.add([kept for _, kept in partial]), strict=True):
            lane.exact = place
        return content


def _annotating_threads(ranges: pl.DataFrame) -> dict[int, str]:
    """Return the thread with the most range time of each process; it annotates threads without ranges."""
    totals = (
        ranges.group_by("process", "thread")
        .agg((pl.col("end") - pl.col("start")).sum().alias("total"))
        .sort(["total", "thread"], descending=[True, False])
        .unique("process", keep="first", maintain_order=True)
        .sort("process")
    )
    return {process: f"t:{thread}" for process, thread, _ in totals.iter_rows()}


def _group_json(group: Group, lanes: Iterator[list[Json]]) -> Json:
    return {
        "label": group.label,
        "note": group.note,
        "rows": [
            {
                **values_of(row, "kind", "id", "label", "note"),
                "more": row.more or place >= MAX_UNFOLDED_ROWS,
                **values_of(row, "process", "owner", "events"),
                "lanes": next(lanes),
                **({} if row.counter is None else {"counter": row.counter}),
            }
            for place, row in enumerate(group.rows)
        ],
    }


@dataclass(slots=True)
class Chunks:
    """The packed chunks, and the rest of the budget in bytes of the file and of memory. Times count from `zero`."""

    zero: int
    left: int
    memory: int
    ratio: float = 0.0  # bytes of the file per byte of memory, for the chunks packed last
    chunks: list[str] = field(default_factory=list)
    names: list[Times] = field(default_factory=list)  # numbers of the names in the chunks

    def add(self, marks: Sequence[Marks], share: float = inf, ratio: float = 0.0) -> list[Json]:
        """Pack marks if they fit into `share` of the rest, by default in any case; return their places, or none.

        `ratio` is the packing ratio of similar marks. Marks that cannot fit at that ratio are not packed.
        """
        buffers, places = [Columns()], []
        for lane in marks:
            if buffers[-1].size > CHUNK_BYTES:
                buffers.append(Columns())
            places.append({"chunk": len(self.chunks) + len(buffers) - 1, "marks": lane.write(buffers[-1], self.zero)})
        size, room = sum(buffer.size for buffer in buffers), inf if share == inf else self.left * share
        if (share < inf and size > self.memory) or size * ratio * MIN_RATIO_SHARE > room:
            return []
        texts = [pack(buffer.raw()) for buffer in buffers]
        if sum(map(len, texts)) > room:
            return []
        self._keep(texts, size)
        self.names.extend(np.flatnonzero(lane.name_counts) for lane in marks)
        return places

    def add_columns(self, columns: Columns, names: Times) -> int:
        """Pack columns as a chunk of their own even where the budget is spent; return the chunk's number."""
        self._keep([pack(columns.raw())], columns.size)
        self.names.append(names)
        return len(self.chunks) - 1

    def _keep(self, texts: list[str], size: int) -> None:
        packed = sum(map(len, texts))
        self.ratio = packed / max(size, 1)
        self.left -= packed
        self.memory -= size
        self.chunks.extend(texts)


@dataclass(slots=True)
class PackedLane:
    """A lane and the places of its packed marks."""

    lane: Lane
    levels: list[Level]  # not packed yet, finest first
    packed: list[Json] = field(default_factory=list)  # levels, coarsest first
    exact: Json | None = None
    whole: bool = False

    def json(self) -> Json:
        """Return the places, for the page's script."""
        return {"levels": self.packed, "exact": self.exact, "whole": self.whole}

    def keep_whole(self, place: Json) -> None:
        """Note the place of all marks, and drop levels that merge little: the events themselves are as good."""
        self.exact, self.whole = place, True
        self.levels = [level for level in self.levels if len(level.marks) * 2 < len(self.lane.marks)]


def pack_start(lanes: Sequence[PackedLane], chunks: Chunks) -> None:
    """Pack the coarsest level of each lane, or a whole lane that has few marks; then all lanes if they fit."""
    coarsest = [lane.levels.pop() if lane.levels else None for lane in lanes]
    marks = [lane.lane.marks if level is None else level.marks for lane, level in zip(lanes, coarsest, strict=True)]
    for lane, level, place in zip(lanes, coarsest, chunks.add(marks), strict=True):
        if level is None:
            lane.keep_whole(place)
        else:
            lane.packed.append({"shift": level.shift, **place})
    rest = sorted((lane for lane in lanes if not lane.whole), key=lambda lane: not lane.lane.on_gpu)
    if _estimated_size([lane.lane.marks for lane in rest], chunks) * 1.1 < chunks.left:
        for lane in rest:
            for whole in chunks.add([lane.lane.marks], share=1.0):
                lane.keep_whole(whole)


def _estimated_size(lanes: Sequence[Marks], chunks: Chunks) -> float:
    """Return the estimated packed bytes of lanes; infinity when they exceed the budget."""
    total = 0.0
    for marks in sorted(lanes, key=len, reverse=True):
        first = max(0, (len(marks) - SAMPLE) // 2)
        sample = marks.take(slice(first, first + SAMPLE))
        columns = Columns()
        sample.write(columns, chunks.zero)
        times = len(marks) / len(sample)
        if columns.size * times > chunks.memory or total > chunks.left:
            return inf
        total += len(pack(columns.raw())) * times
    return total


def pack_levels(lanes: Sequence[PackedLane], chunks: Chunks) -> None:
    """Pack finer and finer levels while they fit: coarse before fine, the GPU's lanes before the host's.

    A side whose level does not fit gets a last level in wider bins.
    """
    top = max((lane.levels[-1].shift for lane in lanes if lane.levels), default=-1)
    ratios = {True: 0.0, False: 0.0}  # packing ratio of the last level by on_gpu; a finished side is removed
    for shift, on_gpu in product(range(top + GPU_FINER, -1 - GPU_FINER, -1), (True, False)):
        least = shift - GPU_FINER if on_gpu else shift
        mine = [lane for lane in lanes if lane.lane.on_gpu is on_gpu and lane.levels]
        due = [(lane, lane.levels.pop()) for lane in mine if lane.levels[-1].shift >= least]
        if not due or on_gpu not in ratios:
            continue
        if _pack_level(due, chunks, SHARES[on_gpu], ratios[on_gpu]):
            ratios[on_gpu] = chunks.ratio
            continue
        wider = [(lane, level.coarser(chunks.zero)) for lane, level in due]
        between = [(lane, each) for lane, each in wider if not lane.packed or each.shift < lane.packed[-1]["shift"]]
        _pack_level(between, chunks, SHARES[on_gpu], ratios.pop(on_gpu))


def _pack_level(due: Sequence[tuple[PackedLane, Level]], chunks: Chunks, share: float, ratio: float) -> bool:
    """Pack one level of some lanes; return whether it fits."""
    places = chunks.add([level.marks for _, level in due], share, ratio) if due else []
    for (lane, level), place in zip(due, places, strict=False):
        lane.packed.append({"shift": level.shift, **place})
    return bool(places)


@dataclass(frozen=True, slots=True)
class Index:
    """Places of names as columns, in order of (name, start, row). `rows` are ids of rows; `row` indexes them.

    They are all events of a rare name, and the first of each bin of others; bins are as narrow as the limit allows.
    """

    rows: list[str]
    name: Times
    count: Times  # all events of that name
    row: Times
    start: Times
    length: Times

    @classmethod
    def from_groups(cls, groups: Sequence[Group], names: int, zero: int = 0) -> Index:
        """Choose places of every name; `names` is the number of names. Bins of time begin at `zero`."""
        searched = [row for group in groups for row in group.rows if row.kind in SEARCHED]
        ids = sorted({row.id for row in searched if row.lanes})
        count, width = np.zeros(names, np.int64), np.full(names, ALL_EVENTS)
        chosen = [np.empty((4, 0), np.int64)]
        for row in searched:
            for lane in row.lanes:
                count[: len(lane.name_counts)] += lane.name_counts
                # A stable sort keeps the order of time. Numbers of 1 or 2 bytes sort much faster.
                smallest = np.min_scalar_type(max(len(lane.name_counts) - 1, 0))
                order = np.argsort(lane.name.astype(smallest, copy=False), kind="stable")
                name, start = lane.name[order], lane.start[order]
                kept = _first_of_bins(name, start, zero, width, MAX_PLACES_OF_NAME)
                at, begin = order[kept], start[kept]
                chosen.append(np.stack([name[kept], np.full(len(at), ids.index(row.id)), begin, lane.end[at] - begin]))
        columns = np.concatenate(chosen, axis=1)
        columns = columns[:, np.lexsort((columns[1], columns[2], columns[0]))]
        columns = columns[:, _first_of_bins(columns[0], columns[2], zero, width, MAX_PLACES_OF_NAME)]
        if columns.shape[1] > MAX_PLACES:
            most = max(1, MAX_PLACES // int((count > 0).sum()))
            columns = columns[:, _first_of_bins(columns[0], columns[2], zero, width, most)][:, :MAX_PLACES]
        name, place, start, length = columns
        return cls(ids, name, count[name], place, start, length)

    def write(self, zero: int, columns: Columns) -> dict[str, object]:
        """Write the index to `columns`, times in ns from `zero`; return the places of its columns."""
        places: dict[str, Packed] = {
            "name": columns.add_ascending(self.name),
            "count": columns.add(self.count),
            "row": columns.add(self.row),
            "start": columns.add_steps(self.start - zero),
            "length": columns.add(self.length),
        }
        return {"n": len(self.name), "rows": self.rows, "columns": places}


def _first_of_bins(name: Numbers, start: Times, zero: int, width: Times, most: int) -> Times:
    """Return the rows that are the first of their name in their bin; rows are in order of name and start.

    Bins begin at `zero` and are 2^width ns wide; `width` has the least width for each name, ALL_EVENTS for no bins.
    Names with more than `most` such rows get wider bins in `width`.
    """
    frequent = np.flatnonzero(counted(name, len(width)) > most)
    place = np.full(len(width), len(frequent), np.int32)  # the last place is that of all rare names
    place[frequent] = np.arange(len(frequent))
    # In bins of 2^width ns, an event is the first if it differs from the one before in bit `width` or a higher one.
    bits = np.full(len(name), MAX_BITS, np.int8)
    firsts = np.zeros((len(frequent) + 1) * (MAX_BITS + 1), np.int64)
    for block in blocks(len(name)):
        now = slice(max(block.start, 1), block.stop)
        before = slice(now.start - 1, now.stop - 1)
        same = np.minimum(significant_bits((start[now] - zero) ^ (start[before] - zero)), MAX_BITS - 1)
        bits[now] = np.where(name[now] != name[before], MAX_BITS, same)
        firsts += np.bincount(place[name[block]] * (MAX_BITS + 1) + bits[block], minlength=len(firsts))
    if len(frequent):
        # The number of rows with more bits than each width, from ALL_EVENTS on.
        more = np.cumsum(firsts.reshape(-1, MAX_BITS + 1)[:-1, ::-1], axis=1)[:, ::-1]
        width[frequent] = np.maximum(width[frequent], np.argmax(more <= most, axis=1) + ALL_EVENTS)
    return np.flatnonzero(bits > width.astype(np.int8)[name])
