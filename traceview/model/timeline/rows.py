"""Rows and groups of the timeline, the styles of marks, and the two bands that lead each device.

A band is the work of a device at each moment by class. Of overlapping classes, the first of WORK_CLASSES counts. The
index has places of each name in the rows, spread over time, for a page that cannot hold every event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Times, blocks
from traceview.model.analysis import CAUSES, DeviceUse
from traceview.model.timeline.marks import Columns, Marks, Names, Numbers, Packed, counted
from traceview.model.timeline.merging import significant_bits
from traceview.model.timeline.stored import AllMarks, StoredMarks
from traceview.model.trace import CLASSES, KINDS, ROLES, Trace, Window

# The look of each copy kind, by direction. Other kinds have the look "copy".
COPY_CLASSES = {
    "h2d": "h2d",
    "um_h2d": "h2d",
    "d2h": "d2h",
    "um_d2h": "d2h",
    "d2d": "d2d",
    "p2p": "d2d",
    "um_d2d": "d2d",
}
WORK_CLASSES = ("compute", "communication", "h2d", "d2h", "d2d", "copy", "memset")
LOOKS = (
    *WORK_CLASSES,
    *(f"call_{role}" for role in ROLES),
    "range",
    "sample",
    "iteration",
    "skipped",
    "counter",
    *(f"idle_{cause}" for cause in CAUSES),
)
WORDS = {
    "compute": "compute",
    "communication": "communication",
    "h2d": "copy h2d",
    "d2h": "copy d2h",
    "d2d": "copy d2d, p2p",
    "copy": "other copy",
    "memset": "memset",
}


IDLE_LOOK = np.uint8(LOOKS.index(f"idle_{CAUSES[0]}"))
OVERLAP_LANES = (("compute",), ("communication",), WORK_CLASSES[2:])


class Band(NamedTuple):
    """One class of work of a device: its union, and the part that no earlier class of WORK_CLASSES covers."""

    name: str
    all: Intervals
    exposed: Intervals

    def exposed_ns(self, window: Window) -> int:
        """Return the exposed ns in a part of the device's window."""
        return intervals.length(intervals.clip(self.exposed, window.start, window.end))


Bands = tuple[Band, ...]


def work_codes(operations: pl.DataFrame) -> NDArray[np.uint8]:
    """Return the index in WORK_CLASSES of each row of Trace.operations."""
    of_class = [WORK_CLASSES.index("copy" if name == "copy" else name) for name in CLASSES]
    of_kind = [WORK_CLASSES.index(COPY_CLASSES.get(kind, "copy")) for kind in KINDS]
    work = operations["class"].to_physical().to_numpy()
    kind = operations["kind"].to_physical().fill_null(len(KINDS)).to_numpy()
    copies = np.array([*of_kind, WORK_CLASSES.index("copy")], np.uint8)[kind]
    codes: NDArray[np.uint8] = np.where(work == CLASSES.index("copy"), copies, np.array(of_class, np.uint8)[work])
    return codes


def bands(trace: Trace, devices: Iterable[DeviceUse]) -> dict[int, Bands]:
    """Return each device's work by class inside its window, by row of Trace.devices.

    The exposed parts of a device add up to its `busy_ns`.
    """
    codes = work_codes(trace.operations)
    return {device.device: _device_bands(trace.operations, device, codes) for device in devices}


def _device_bands(operations: pl.DataFrame, device: DeviceUse, codes: NDArray[np.uint8]) -> Bands:
    start, end = operations["start"].to_numpy(), operations["end"].to_numpy()
    mine = operations["device"].to_numpy() == device.device
    if not mine.all():
        start, end, codes = start[mine], end[mine], codes[mine]
    used = np.bincount(codes, minlength=len(WORK_CLASSES))
    split: list[Band] = []
    for code, name in enumerate(WORK_CLASSES):
        chosen = np.flatnonzero(codes == code) if 0 < used[code] < len(codes) else slice(None if used[code] else 0)
        union = intervals.union(start[chosen], end[chosen], ordered=True)
        union = intervals.clip(union, device.window.start, device.window.end)
        exposed = union
        for before in split:
            exposed = intervals.subtract(exposed, before.all)
        split.append(Band(name, union, exposed))
    return tuple(split)


class TimelineRow(NamedTuple):
    """One row. Evidence refers to `id`; `events` counts the capture's events in the row, 0 for bands.

    A row has one or more lanes of marks. The row of an unused stream has none. Rows of the same `part` fold together.
    """

    kind: str  # ruler, overlap, idle, counter, stream, range, call, sample, projected
    id: str
    label: str
    note: str
    lanes: tuple[AllMarks, ...]
    events: int = 0
    more: bool = False  # folded initially
    process: int | None = None
    part: str = ""
    counter: Mapping[str, object] | None = None  # a counter's unit and scale


class Group(NamedTuple):
    """Rows under one heading."""

    label: str
    note: str
    rows: tuple[TimelineRow, ...]


def overlap_lanes(work: Bands, names: Names) -> tuple[Marks, ...]:
    """Return the work of a device as marks, in the order of OVERLAP_LANES."""
    bands = {band.name: band for band in work}
    return tuple(_lane([bands[name] for name in lane], names) for lane in OVERLAP_LANES)


def unions(lanes: Sequence[Marks]) -> dict[str, Intervals]:
    """Return the busy time of a device by class, from the lanes of its overlap row."""
    classes = {}
    for names, lane in zip(OVERLAP_LANES, lanes, strict=True):
        for name in names:
            chosen = slice(None) if len(names) == 1 else lane.look == LOOKS.index(name)
            classes[name] = Intervals(lane.start[chosen], lane.end[chosen])
    return classes


def _lane(bands: list[Band], names: Names) -> Marks:
    sizes = [len(band.all.start) for band in bands]
    name = np.array([names.number(WORDS[band.name]) for band in bands], np.int32)
    look = np.array([LOOKS.index(band.name) for band in bands], np.uint8)
    if not any(sizes[1:]):
        return Marks(*bands[0].all, np.repeat(name, sizes), np.repeat(look, sizes))
    start = np.concatenate([band.all.start for band in bands])
    end = np.concatenate([band.all.end for band in bands])
    marks = Marks(start, end, np.repeat(name, sizes), np.repeat(look, sizes))
    return marks.take(np.argsort(start, kind="stable"))


def largest(columns: Mapping[int, Times], count: int) -> NDArray[np.uint8]:
    """Return for each of `count` rows the number of its largest column, the first of several; 0 where all are 0.

    The columns are in ascending order of their numbers.
    """
    numbers = np.zeros(count, np.uint8)
    for block in blocks(count):
        largest = np.zeros(block.stop - block.start, np.int64)
        for number, column in columns.items():
            # Numbers ascend, so maximum() replaces a masked assignment, which is much slower.
            more = (column[block] > largest).view(np.uint8) * np.uint8(number)
            np.maximum(numbers[block], more, out=numbers[block])
            np.maximum(largest, column[block], out=largest)
    return numbers


def idle_lane(operations: pl.DataFrame, device: DeviceUse, names: Names) -> Marks:
    """Return the gaps of a device as marks, with their ns by cause."""
    gaps = device.gaps.frame
    causes = {cause: gaps[cause].to_numpy() for cause in CAUSES if device.gaps.causes[cause]}
    main = largest({CAUSES.index(cause): column for cause, column in causes.items()}, len(gaps))
    ended_by = gaps["operation"].fill_null(-1).to_numpy()
    ending = names.column(operations["name"]).numbers(np.maximum(ended_by, 0))
    none = names.number("")
    return Marks(
        gaps["start"].to_numpy(),
        gaps["end"].to_numpy(),
        np.where(ended_by >= 0, ending, np.int32(none)) if len(gaps) else main,
        main + IDLE_LOOK,
        causes,
    )


SEARCHED = ("ruler", "stream", "call", "range", "sample")
MAX_PLACES_OF_NAME = 128
MAX_PLACES = 120_000  # limit for the places of all names
ALL_EVENTS = -1  # the width of a rare name: each of its events is a place
MAX_BITS = 64


class NamePlaces(NamedTuple):
    """Places of names, in order of (name, start, row): all events of a rare name, and the first of each bin of others.

    Bins are 2^width ns wide; `width` has a value for each name, ALL_EVENTS for a rare one. Bins are as narrow as the
    limit allows. Bins of twice the width join two bins, so places of parts of the events merge: the first events of
    all parts have the same places as all events.
    """

    name: Times
    row: Times
    start: Times
    length: Times
    width: Times

    @classmethod
    def none(cls, names: int) -> NamePlaces:
        """Return no places of any of `names` names."""
        empty = np.empty(0, np.int64)
        return cls(empty, empty, empty, empty, np.full(names, ALL_EVENTS))

    @classmethod
    def from_marks(cls, marks: Marks, zero: int, row: int, names: int, most: int | None = None) -> NamePlaces:
        """Return at most `most` places of each of `names` names; bins begin at `zero`."""
        # A stable sort keeps the order of time. Numbers of 1 or 2 bytes sort much faster.
        smallest = np.min_scalar_type(int(marks.name.max(initial=0)))
        order = np.argsort(marks.name.astype(smallest, copy=False), kind="stable")
        name, start = marks.name[order], marks.start[order]
        width = np.full(names, ALL_EVENTS)
        kept = _first_of_bins(name, start, zero, width, MAX_PLACES_OF_NAME if most is None else most)
        rows = order[kept]
        start = start[kept]
        number = np.full(len(rows), row, np.int64)
        return cls(name[kept].astype(np.int64), number, start, marks.end[rows] - start, width)

    @classmethod
    def merged(cls, parts: Sequence[NamePlaces], zero: int, most: int | None = None) -> NamePlaces:
        """Return at most `most` places of each name, of the events of all parts; bins begin at `zero`."""
        name, row, start, length = (
            np.concatenate([getattr(part, column) for part in parts]) for column in ("name", "row", "start", "length")
        )
        order = np.lexsort((row, start, name))
        width = reduce(np.maximum, (part.width for part in parts))
        every = cls(name[order], row[order], start[order], length[order], width)
        return every.limited(zero, MAX_PLACES_OF_NAME if most is None else most)

    def limited(self, zero: int, most: int) -> NamePlaces:
        """Return at most `most` places of each name."""
        width = self.width.copy()
        kept = _first_of_bins(self.name, self.start, zero, width, most)
        return NamePlaces(self.name[kept], self.row[kept], self.start[kept], self.length[kept], width)

    def take(self, rows: Numbers | slice) -> NamePlaces:
        """Return some of the places."""
        return NamePlaces(self.name[rows], self.row[rows], self.start[rows], self.length[rows], self.width)


def _first_of_bins(name: Numbers, start: Times, zero: int, width: Times, most: int) -> Times:
    """Return the rows that are the first of their name in their bin; rows are in order of name and start.

    Bins begin at `zero`. `width` is the least width of each name's bins; names with more than `most` such rows get
    wider bins in `width`.
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


@dataclass(frozen=True, slots=True)
class Index:
    """Places of names as columns, in order of (name, start). `rows` are ids of rows; `row` indexes them."""

    rows: list[str]
    name: Times
    count: Times  # all events of that name
    row: Times
    start: Times
    length: Times

    @classmethod
    def from_groups(
        cls, groups: Sequence[Group], names: int, zero: int = 0, stored: tuple[Sequence[str], NamePlaces] | None = None
    ) -> Index:
        """Choose places of every name; `names` is the number of names. Bins of time begin at `zero`.

        `stored` has the places of lanes in files, and the ids of their rows.
        """
        searched = [row for group in groups for row in group.rows if row.kind in SEARCHED and row.lanes]
        ids = sorted({row.id for row in searched})
        count, places = np.zeros(names, np.int64), [NamePlaces.none(names)]
        for row in searched:
            for lane in row.lanes:
                count += lane.name_counts(names)
                if not isinstance(lane, StoredMarks):
                    places.append(NamePlaces.from_marks(lane, zero, ids.index(row.id), names))
        if stored is not None:
            places.append(_renumbered(*stored, ids, names))
        chosen = NamePlaces.merged(places, zero)
        if len(chosen.name) > MAX_PLACES:
            chosen = chosen.limited(zero, max(1, MAX_PLACES // int((count > 0).sum()))).take(slice(0, MAX_PLACES))
        return cls(ids, chosen.name, count[chosen.name], chosen.row, chosen.start, chosen.length)

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


def _renumbered(rows: Sequence[str], places: NamePlaces, ids: Sequence[str], names: int) -> NamePlaces:
    """Return the places with the numbers of their rows in `ids`, which has them all, and a width for all names."""
    number = np.array([ids.index(row) for row in rows], np.int64)
    width = NamePlaces.none(names).width
    width[: len(places.width)] = places.width
    return places._replace(row=number[places.row], width=width)
