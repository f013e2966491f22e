"""The timeline of a page: every event where the byte budget allows, else levels and the places that matter.

The first chunk shows every row at a glance. The chunks behind it go from coarse to fine, so that a page of any
size draws at once and sharpens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from traceview.intervals import EMPTY, Intervals, Times
from traceview.model.timeline.events import PageInputs, TimelineEvents
from traceview.model.timeline.groups import annotating_threads
from traceview.model.timeline.levels import Lane, Level, coarser, kept_marks, merged_lanes, places
from traceview.model.timeline.marks import Columns, Marks, Names, used
from traceview.model.timeline.rows import LOOKS, Group, Index
from traceview.model.timeline.sums import (
    bin_shift,
    device_lanes,
    name_bins,
    packed_sums,
    sums_of_devices,
    sums_of_names,
    tally,
    tally_bins,
)
from traceview.report.assets import pack
from traceview.report.json import values_of

MAX_UNFOLDED_ROWS = 16  # rows of a group
MARKS_PER_BYTE = 0.105  # marks of all levels per byte of the file; a mark takes 4 to 15 bytes
KEPT_SHARE = 0.33  # share of the budget for the places in full detail
MARK_BYTES = 12  # bytes of the file for one mark in full detail; limits the places
MAX_UNPACKED = 7  # bytes of browser memory per byte of the budget
CHUNK_BYTES = 1_000_000  # bytes of memory; the page unpacks one chunk at a time
MIN_RATIO_SHARE = 0.9  # share of the last packing ratio; marks rarely pack better, and packing takes time
SAMPLE = 1 << 14  # marks of a lane that are packed to estimate the size of the lane
GPU_FINER = 2  # doublings by which the rows of the GPU are finer than those of the host
# The share of the remaining budget for one level, by on_gpu: the GPU leaves a part for the host.
SHARES = {True: 2 / 3, False: 1.0}

Json = dict[str, Any]


class PackedTimeline(NamedTuple):
    """The data of the timeline: `content` as JSON, packed chunks of columns, and names by number."""

    content: dict[str, object]
    chunks: list[str]
    names: list[str]


@dataclass(frozen=True, slots=True)
class MergedRows:
    """All rows, and the lanes of each row with their levels."""

    groups: Sequence[Group]
    lanes: Mapping[str, Sequence[Lane]]  # lanes by row id
    index: Callable[[int], Index]  # the search index, by the number of names

    @classmethod
    def within(cls, source: TimelineEvents, groups: Sequence[Group], budget: int) -> MergedRows:
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


def timeline(inputs: PageInputs, merged: MergedRows, budget: int) -> PackedTimeline:
    """Pack the rows into `budget` bytes of the file."""
    span, names = inputs.events.span, inputs.events.names
    chunks = ChunkBudget.from_bytes(span.start, budget)
    every = [lane for lanes in merged.lanes.values() for lane in lanes]
    known = len(names.texts)
    packed, extra, chunk = pack_lanes(every, chunks, lambda: _page_extra(inputs, merged, every, budget, known))
    cover = EMPTY if extra is None else extra.cover
    remaining = iter(packed)
    places = {row: [lane.json() for lane in islice(remaining, len(lanes))] for row, lanes in merged.lanes.items()}
    content: dict[str, object] = {
        "span": [0, span.length],
        "events": sum(row.events for group in merged.groups for row in group.rows),
        "whole": all(lane.whole for lane in packed),
        "cover": (np.stack(cover, axis=1) - span.start).tolist(),
        "looks": list(LOOKS),
        "used": [LOOKS[look] for look in sorted(set().union(*(lane.looks.tolist() for lane in every)))],
        "annotating": annotating_threads(inputs.analysis.trace.ranges),
        "groups": [_group_json(group, places) for group in merged.groups],
    }
    if extra is not None:
        content |= {**extra.content, "summary_chunk": chunk}
    return PackedTimeline(content, chunks.chunks, _used_names(names, chunks))


def _page_extra(inputs: PageInputs, merged: MergedRows, every: Sequence[Lane], budget: int, names: int) -> Extra:
    """Return the parts of a page whose timeline does not fit into `budget` bytes; `names` is the number of names."""
    source = inputs.events
    span, columns, index = source.span, Columns(), merged.index(names)
    length = span.length
    cover = places(inputs, every, int(budget * KEPT_SHARE / MARK_BYTES))
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


def _used_names(names: Names, chunks: ChunkBudget) -> list[str]:
    """Return the names by number; unused names are empty."""
    used = set(np.unique(np.concatenate(chunks.names)).tolist()) if chunks.names else set()
    return [text if number in used else "" for number, text in enumerate(names.texts)]


def _group_json(group: Group, places: Mapping[str, list[Json]]) -> Json:
    return {
        "label": group.label,
        "note": group.note,
        "rows": [
            {
                **values_of(row, "kind", "id", "label", "note"),
                "more": row.more or place >= MAX_UNFOLDED_ROWS,
                **values_of(row, "process", "part", "events"),
                "lanes": places[row.id],
                **({} if row.counter is None else {"counter": row.counter}),
            }
            for place, row in enumerate(group.rows)
        ],
    }


@dataclass(slots=True)
class ChunkBudget:
    """The packed chunks, and the rest of the budget in bytes of the file and of memory."""

    zero: int
    left: int
    memory: int
    ratio: float = 0.0  # bytes of the file per byte of memory, for the chunks packed last
    chunks: list[str] = field(default_factory=list)
    names: list[Times] = field(default_factory=list)  # numbers of the names in the chunks

    @classmethod
    def from_bytes(cls, zero: int, budget: int) -> ChunkBudget:
        """Return a budget of `budget` bytes of the file without chunks; times count from `zero`."""
        return cls(zero, budget, budget * MAX_UNPACKED)

    def add(self, marks: Sequence[Marks], *, share: float = 1.0, ratio: float = 0.0) -> list[Json]:
        """Pack marks if they fit into `share` of the rest; return their places, or an empty list.

        `ratio` is the packing ratio of similar marks. Marks that cannot fit at that ratio are not packed.
        """
        parts, places = self._columns(marks)
        size = sum(part.size for part in parts)
        room = self.left * share
        if size > self.memory or size * ratio * MIN_RATIO_SHARE > room:
            return []
        texts = [pack(part.raw()) for part in parts]
        if sum(map(len, texts)) > room:
            return []
        return self._keep(marks, texts, size, places)

    def require(self, marks: Sequence[Marks]) -> list[Json]:
        """Pack marks even where the budget is spent; return their places."""
        parts, places = self._columns(marks)
        return self._keep(marks, [pack(part.raw()) for part in parts], sum(part.size for part in parts), places)

    def require_columns(self, columns: Columns) -> int:
        """Pack columns as a separate chunk even where the budget is spent; return the chunk's number."""
        self._keep([], [pack(columns.raw())], columns.size, [])
        return len(self.chunks) - 1

    def _columns(self, marks: Sequence[Marks]) -> tuple[list[Columns], list[tuple[int, Json]]]:
        """Return the marks as columns of one or more chunks, and the chunk and place of each."""
        parts, places = [Columns()], []
        for lane in marks:
            if parts[-1].size > CHUNK_BYTES:
                parts.append(Columns())
            places.append((len(parts) - 1, lane.write(parts[-1], self.zero)))
        return parts, places

    def _keep(
        self, marks: Sequence[Marks], texts: Sequence[str], size: int, places: Sequence[tuple[int, Json]]
    ) -> list[Json]:
        packed = sum(map(len, texts))
        self.ratio = packed / max(size, 1)
        self.left -= packed
        self.memory -= size
        self.names.extend(used(lane.name) for lane in marks if len(lane))
        first = len(self.chunks)
        self.chunks.extend(texts)
        return [{"chunk": first + part, "marks": place} for part, place in places]


class Extra(NamedTuple):
    """The parts of a page that does not hold every event.

    `columns` holds sums and places of names, `content` the places of these columns, `names` the numbers of the names.
    `cover` are the stretches where every lane has full detail; `kept` are the marks of each lane in these stretches,
    and the calls that launched them.
    """

    columns: Columns
    content: Mapping[str, object]
    names: Times
    cover: Intervals
    kept: Sequence[Marks]


@dataclass(slots=True)
class PackedLane:
    """A lane and the places of its packed parts."""

    lane: Lane
    levels: list[Level]  # not packed yet, finest first
    packed: list[Json] = field(default_factory=list)  # levels, coarsest first
    exact: Json | None = None
    whole: bool = False

    def json(self) -> Json:
        """Return the places, for the page's script."""
        return {"levels": self.packed, "exact": self.exact, "whole": self.whole}


def pack_lanes(
    lanes: Sequence[Lane], budget: ChunkBudget, extra: Callable[[], Extra]
) -> tuple[list[PackedLane], Extra | None, int]:
    """Pack lanes in one pass from coarse to fine until the budget is spent.

    Return the packed lanes, the result of `extra` and the chunk of its columns; None and 0 where every event fits.
    """
    packed = [PackedLane(lane, list(lane.levels)) for lane in lanes]
    _pack_glance(packed, budget)
    if _estimated_size(packed, budget) * 1.1 < budget.left:
        for lane in sorted(packed, key=lambda lane: not lane.lane.on_gpu):
            _pack_whole(lane, budget)
    beside, chunk = None, 0
    if not all(lane.whole for lane in packed):
        beside = extra()
        chunk = budget.require_columns(beside.columns)
        budget.names.append(beside.names)
        _pack_kept(packed, beside.kept, budget)
    pack_levels(packed, budget)
    return packed, beside, chunk


def _pack_kept(lanes: Sequence[PackedLane], kept: Sequence[Marks], budget: ChunkBudget) -> None:
    """Pack the kept marks of the lanes that are not whole."""
    partial = [(lane, marks) for lane, marks in zip(lanes, kept, strict=True) if not lane.whole]
    for (lane, _), place in zip(partial, budget.require([marks for _, marks in partial]), strict=True):
        lane.exact = place


def _pack_glance(lanes: Sequence[PackedLane], budget: ChunkBudget) -> None:
    """Pack the first chunk: the coarsest level of each lane, or a whole lane that has few marks."""
    coarsest = [lane.levels.pop() if lane.levels else None for lane in lanes]
    marks = [lane.lane.whole() if level is None else level.marks for lane, level in zip(lanes, coarsest, strict=True)]
    for lane, level, place in zip(lanes, coarsest, budget.require(marks), strict=True):
        if level is None:
            lane.exact, lane.whole = place, True
        else:
            lane.packed.append({"shift": level.shift, **place})


def _estimated_size(lanes: Sequence[PackedLane], budget: ChunkBudget) -> float:
    """Return the estimated packed bytes of all lanes that are not whole; infinity when they exceed the budget."""
    total = 0.0
    for marks in sorted((lane.lane.marks for lane in lanes if not lane.whole), key=len, reverse=True):
        first = max(0, (len(marks) - SAMPLE) // 2)
        sample = marks.take(slice(first, first + SAMPLE))
        columns = Columns()
        sample.write(columns, budget.zero)
        times = len(marks) / len(sample)
        if columns.size * times > budget.memory or total > budget.left:
            return float("inf")
        total += len(pack(columns.raw())) * times
    return total


def _pack_whole(lane: PackedLane, budget: ChunkBudget) -> None:
    if lane.whole:
        return
    marks = lane.lane.whole()
    if places := budget.add([marks]):
        lane.exact, lane.whole = places[0], True
        # Drop levels that merge little: the events themselves are as good.
        lane.levels = [level for level in lane.levels if len(level.marks) * 2 < len(marks)]


def pack_levels(lanes: Sequence[PackedLane], budget: ChunkBudget) -> None:
    """Pack finer and finer levels while they fit. A side whose level does not fit gets a last level in wider bins."""
    ratios = {True: 0.0, False: 0.0}  # packing ratio of the last level by on_gpu; a finished side is removed
    for on_gpu, due in _ordered_levels(lanes):
        if on_gpu not in ratios:
            continue
        if not _pack_level(due, on_gpu, ratios, budget):
            _pack_level(_wider_levels(due, budget.zero), on_gpu, ratios, budget)
            del ratios[on_gpu]


def _pack_level(
    due: Sequence[tuple[PackedLane, Level]], on_gpu: bool, ratios: dict[bool, float], budget: ChunkBudget
) -> bool:
    """Pack one level of one side's lanes; return whether it fits."""
    places = budget.add([level.marks for _, level in due], share=SHARES[on_gpu], ratio=ratios[on_gpu]) if due else []
    for (lane, level), place in zip(due, places, strict=False):
        lane.packed.append({"shift": level.shift, **place})
    if places:
        ratios[on_gpu] = budget.ratio
    return bool(places)


def _wider_levels(due: Sequence[tuple[PackedLane, Level]], zero: int) -> list[tuple[PackedLane, Level]]:
    """Return levels between those that did not fit and the coarser packed levels."""
    wider = [(lane, coarser(level, zero)) for lane, level in due]
    return [(lane, level) for lane, level in wider if not lane.packed or level.shift < lane.packed[-1]["shift"]]


def _ordered_levels(lanes: Sequence[PackedLane]) -> Iterator[tuple[bool, list[tuple[PackedLane, Level]]]]:
    """Yield the levels in the order of packing: coarse before fine, the GPU's rows before the host's."""
    top = max((lane.levels[-1].shift for lane in lanes if lane.levels), default=-1)
    for shift in range(top + GPU_FINER, -1 - GPU_FINER, -1):
        for on_gpu in (True, False):
            least = shift - GPU_FINER if on_gpu else shift
            mine = [lane for lane in lanes if lane.lane.on_gpu is on_gpu and lane.levels]
            if due := [(lane, lane.levels.pop()) for lane in mine if lane.levels[-1].shift >= least]:
                yield on_gpu, due
