"""Places of each name in the rows, spread over time: the search of a page that cannot hold every event uses them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceview.intervals import Times, blocks
from traceview.model.frozen import dataclass
from traceview.report.columns import Columns, Packed
from traceview.report.timeline.marks import Numbers, counted
from traceview.report.timeline.merging import significant_bits
from traceview.report.timeline.rows import Group

SEARCHED = ("ruler", "stream", "call", "range", "sample")
MAX_PLACES_OF_NAME = 128
MAX_PLACES = 120_000  # limit for the places of all names
ALL_EVENTS = -1  # the width of a rare name: each of its events is a place
MAX_BITS = 64


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
