"""The search index of a page that cannot hold every event: places of each name, spread over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

from traceview.intervals import Times
from traceview.model.timeline.marks import Columns, Marks, Numbers, Packed, counted
from traceview.model.timeline.merging import significant_bits
from traceview.model.timeline.rows import Group
from traceview.model.timeline.stored import StoredMarks

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
        # A stable sort keeps the order of time.
        order = np.argsort(_smallest_type(marks.name), kind="stable")
        name, start = marks.name[order], marks.start[order]
        width = np.full(names, ALL_EVENTS)
        kept = _first_of_bins(name, start - zero, width, MAX_PLACES_OF_NAME if most is None else most)
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
        kept = _first_of_bins(self.name, self.start - zero, width, most)
        return NamePlaces(self.name[kept], self.row[kept], self.start[kept], self.length[kept], width)

    def take(self, rows: Numbers | slice) -> NamePlaces:
        """Return some of the places."""
        return NamePlaces(self.name[rows], self.row[rows], self.start[rows], self.length[rows], self.width)


def _smallest_type(numbers: Numbers) -> Numbers:
    """Return numbers from 0 in the smallest type that fits: 1 or 2 bytes sort much faster."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))), copy=False)


def _first_of_bins(name: Numbers, start: Times, width: Times, most: int) -> Times:
    """Return the rows that are the first of their name in their bin; rows are in order of name and start.

    `width` is the least width of each name's bins; names with more than `most` such rows get wider bins in `width`.
    """
    if len(name) == 0:
        return np.empty(0, np.int64)
    # In bins of 2^width ns, an event is the first if it differs from the one before in bit `width` or a higher one.
    bits = np.full(len(name), MAX_BITS)
    same = np.minimum(significant_bits(start[1:] ^ start[:-1]), MAX_BITS - 1)
    bits[1:] = np.where(name[1:] != name[:-1], MAX_BITS, same)
    frequent = np.flatnonzero(counted(name, len(width)) > most)
    if len(frequent):
        place = np.full(len(width), -1)
        place[frequent] = np.arange(len(frequent))
        rows = np.flatnonzero(place[name] >= 0)
        cell = place[name[rows]] * (MAX_BITS + 1) + bits[rows]
        firsts = np.bincount(cell, minlength=len(frequent) * (MAX_BITS + 1)).reshape(-1, MAX_BITS + 1)
        # The number of rows with more bits than each width, from ALL_EVENTS on.
        more = np.cumsum(firsts[:, ::-1], axis=1)[:, ::-1]
        width[frequent] = np.maximum(width[frequent], np.argmax(more <= most, axis=1) + ALL_EVENTS)
    return np.flatnonzero(bits > width[name])


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
