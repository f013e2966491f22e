"""How much detail the page holds: every event where the budget allows, else levels and the places that matter.

The first chunk shows every row at a glance. The chunks behind it go from coarse to fine, so that a page of any
size draws at once and sharpens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from traceview.intervals import Intervals, Times
from traceview.report.timeline.chunks import ChunkBudget, Json
from traceview.report.timeline.columns import Columns
from traceview.report.timeline.lane import Lane
from traceview.report.timeline.levels import Level, coarser
from traceview.report.timeline.marks import Marks

SAMPLE = 1 << 14  # marks of a lane from which the packed size of the whole lane is estimated
GPU_FINER = 2  # doublings by which the GPU's rows are finer than the host's, while the budget lasts
# Of what is left, for one level of the GPU's rows and of the host's: the GPU's may not leave the host nothing.
SHARES = {True: 2 / 3, False: 1.0}


@dataclass(frozen=True, slots=True)
class Extra:
    """The parts of a page that does not hold every event.

    `columns` are sums and places of names, `content` says where they lie, `names` are the numbers of those names.
    `cover` are the stretches in which every lane is in full, `kept` the marks of each lane there, or that launched
    what is there.
    """

    columns: Columns
    content: Mapping[str, object]
    names: Times
    cover: Intervals
    kept: Sequence[Marks]


@dataclass(slots=True)
class PackedLane:
    """A lane, and the places of what is packed of it."""

    lane: Lane
    levels: list[Level]  # not packed yet, the finest first
    packed: list[Json] = field(default_factory=list)  # levels, the coarsest first
    exact: Json | None = None
    whole: bool = False

    def json(self) -> Json:
        """Return the places, for the page's script."""
        return {"levels": self.packed, "exact": self.exact, "whole": self.whole}


def pack_lanes(
    lanes: Sequence[Lane], budget: ChunkBudget, extra: Callable[[], Extra]
) -> tuple[list[PackedLane], Extra | None, int]:
    """Pack lanes in one pass from coarse to fine, as far as the budget goes.

    Return the packed lanes, and what `extra` gives with the chunk of its columns; None and 0 where every event fits.
    """
    packed = [PackedLane(lane, list(lane.levels)) for lane in lanes]
    _pack_glance(packed, budget)
    if _estimated_size(packed, budget) * 1.1 < budget.left:
        for lane in sorted(packed, key=lambda one: not one.lane.on_gpu):
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
    """Pack the marks of the places in full, of lanes that are not whole."""
    partial = [(lane, marks) for lane, marks in zip(lanes, kept, strict=True) if not lane.whole]
    for (lane, _), place in zip(partial, budget.require([marks for _, marks in partial]), strict=True):
        lane.exact = place


def _pack_glance(lanes: Sequence[PackedLane], budget: ChunkBudget) -> None:
    """Pack the first chunk: the coarsest level of each lane, or all of one that has few marks."""
    coarsest = [lane.levels.pop() if lane.levels else None for lane in lanes]
    marks = [lane.lane.marks if level is None else level.marks for lane, level in zip(lanes, coarsest, strict=True)]
    for lane, level, place in zip(lanes, coarsest, budget.require(marks), strict=True):
        if level is None:
            lane.exact, lane.whole = place, True
        else:
            lane.packed.append({"shift": level.shift, **place})


def _estimated_size(lanes: Sequence[PackedLane], budget: ChunkBudget) -> float:
    """Return the packed bytes of every lane that is not whole yet, estimated; infinite where far too many."""
    total = 0.0
    for marks in sorted((lane.lane.marks for lane in lanes if not lane.whole), key=len, reverse=True):
        first = max(0, (len(marks) - SAMPLE) // 2)
        sample = marks.take(slice(first, first + SAMPLE))
        columns = Columns()
        sample.write(columns, budget.zero)
        times = len(marks) / len(sample)
        if columns.size * times > budget.memory or total > budget.left:
            return float("inf")
        total += len(columns.packed()) * times
    return total


def _pack_whole(lane: PackedLane, budget: ChunkBudget) -> None:
    marks = lane.lane.marks
    if not lane.whole and (places := budget.add([marks])):
        lane.exact, lane.whole = places[0], True
        # Bins that hardly merge are no better than the events themselves.
        lane.levels = [level for level in lane.levels if len(level.marks) * 2 < len(marks)]


def pack_levels(lanes: Sequence[PackedLane], budget: ChunkBudget) -> None:
    """Pack finer and finer levels while they fit. The side that no longer fits gets one level in wider bins instead."""
    ratios = {True: 0.0, False: 0.0}  # of the side's last level; a side without an entry is done
    for on_gpu, due in _ordered_levels(lanes):
        if on_gpu not in ratios:
            continue
        if not _pack_level(due, on_gpu, ratios, budget):
            _pack_level(_wider(due, budget.zero), on_gpu, ratios, budget)
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


def _wider(due: Sequence[tuple[PackedLane, Level]], zero: int) -> list[tuple[PackedLane, Level]]:
    """Return levels between those that did not fit and the packed ones before them."""
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
