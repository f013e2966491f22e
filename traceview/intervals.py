"""Interval algebra on sorted int64 arrays. Every figure rests on it.

Functions on arrays and row numbers come first: they compute in blocks that stay in the processor's cache, and find
equal rows by hashes. Then come the operations on unions of intervals, and the length of a union inside many queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

Times = NDArray[np.int64]
Rows = NDArray[np.int32]  # row numbers; int32 halves the memory of frames with tens of millions of rows
Positions = NDArray[np.intp]
Item = TypeVar("Item", bound=np.generic)

BLOCK = 1 << 16  # rows whose temporary arrays stay in the processor's cache
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, as in Fibonacci hashing
LARGEST_BLOCK = 1 << 12
SLOT_BITS = 16  # a table of this many slots stays in the processor's cache


def blocks(count: int) -> Iterator[slice]:
    """Cut `count` rows into slices whose temporary arrays stay in the processor's cache."""
    return (slice(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK))


def integer_type(most: int) -> type[np.signedinteger[Any]]:
    """Return the type for numbers up to `most` that takes the least memory: int32 or int64."""
    return np.int32 if most < 1 << 31 else np.int64


def rows_where(chosen: NDArray[np.bool_]) -> Rows:
    """Return the row numbers where a mask is true, ascending."""
    rows, count = np.empty(np.count_nonzero(chosen), np.int32), 0
    for block in blocks(len(chosen)):
        some = np.flatnonzero(chosen[block])
        rows[count : count + len(some)] = some + block.start
        count += len(some)
    return rows


def rows_by_code(codes: NDArray[np.integer[Any]]) -> Iterator[tuple[int, Rows]]:
    """Yield each code that occurs, and its row numbers, ascending. One sort serves all codes."""
    counts = np.bincount(codes)
    used = np.flatnonzero(counts)
    if len(used) < 2:
        yield from ((int(code), np.arange(len(codes), dtype=np.int32)) for code in used)
        return
    order = np.argsort(codes, kind="stable").astype(np.int32)
    yield from zip(used.tolist(), np.split(order, np.cumsum(counts[used])[:-1]), strict=True)


def runs(marked: NDArray[np.bool_]) -> tuple[Times, Times]:
    """Return the first position of each run of marks, and the position after its last."""
    edges = np.flatnonzero(np.diff(marked, prepend=False, append=False))
    return edges[::2], edges[1::2]


def adjoining(rows: Rows | Times) -> Rows | Times | slice:
    """Return distinct ascending rows as a slice, which copies nothing, if no row is missing between them."""
    count = len(rows)
    return slice(int(rows[0]), int(rows[0]) + count) if count and rows[-1] - rows[0] == count - 1 else rows


def values_at(values: NDArray[Item], place: NDArray[np.signedinteger[Any]], otherwise: Any) -> NDArray[Item]:
    """Return the value at each place, and `otherwise` at -1."""
    if len(values) == 0:
        return np.full(len(place), otherwise, values.dtype)
    result: NDArray[Item] = values[place]
    unknown = place < 0
    if unknown.any():
        result[unknown] = otherwise
    return result


def is_sorted(times: Times) -> bool:
    """Return whether times ascend."""
    return bool((times[1:] >= times[:-1]).all())


def sorted_unique(values: Times) -> Times:
    """Return the distinct values, ascending. Ten times faster than np.unique, which hashes first."""
    ordered = np.sort(values)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]


def index_ranges(first: Times, count: Times) -> Times:
    """Return first[i], first[i] + 1, ... (count[i] numbers) for every i, concatenated."""
    numbers = np.repeat(first - (np.cumsum(count) - count), count)
    numbers += np.arange(len(numbers))
    return numbers


def row_hashes(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row; equal rows have equal hashes."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    for block in blocks(len(hashes)):
        mixed = hashes[block]
        for column in columns:
            mixed += column[block].view(np.uint64)
            mixed *= MULTIPLIER
            mixed ^= mixed >> np.uint64(29)
    return hashes


def first_equal_rows(hashes: NDArray[np.uint64]) -> Positions:
    """Return for each row the first row with the same hash. A few thousand different rows are fastest."""
    equal = np.empty(len(hashes), np.intp)
    rest = np.arange(len(hashes))
    for shift in range(64 - SLOT_BITS, -1, -SLOT_BITS):
        some = hashes[rest]
        slot = (some >> np.uint64(shift) & np.uint64((1 << SLOT_BITS) - 1)).astype(np.uint16)
        table = np.empty(1 << SLOT_BITS, np.intp)
        table[slot[::-1]] = rest[::-1]  # the first row of a slot is written last
        equal[rest] = table[slot]
        # Rows with one hash are in one slot: either all of them have their first row, or none.
        rest = rest[hashes[equal[rest]] != some]
        if len(rest) == 0:
            return equal
    _, first, members = np.unique(hashes[rest], return_index=True, return_inverse=True)
    equal[rest] = rest[first][members]
    return equal


def number_distinct(equal: Positions) -> tuple[Positions, Positions]:
    """Return the rows that are the first of their kind, and for each row the position of its kind among them."""
    first = np.flatnonzero(equal == np.arange(len(equal)))
    number = np.empty(len(equal), np.intp)
    number[first] = np.arange(len(first))
    return first, number[equal]


def distinct_rows(frames: Sequence[pl.DataFrame]) -> tuple[pl.DataFrame, list[Times]]:
    """Return the distinct rows of frames with equal columns, and for each frame the position of its rows among them.

    They are in the order of their first occurrence.
    """
    every = pl.concat(frames)
    distinct = every.unique(maintain_order=True)
    numbered = distinct.with_row_index("position")
    joined = every.join(numbered, on=every.columns, how="left", nulls_equal=True, maintain_order="left")
    position = joined["position"].cast(pl.Int64).to_numpy()
    return distinct, np.split(position, np.cumsum([len(frame) for frame in frames])[:-1])


def rows_of_largest(values: NDArray[np.signedinteger[Any]], count: int) -> Times:
    """Return the rows of the `count` largest values, and of all as large as the least of these."""
    if not 0 < count < len(values):
        return np.arange(len(values) if count > 0 else 0)
    starts, least = np.arange(0, len(values), LARGEST_BLOCK), values.min()
    if count <= len(starts):
        # `count` blocks have a maximum of at least this size, so at least `count` values have it.
        least = np.partition(np.maximum.reduceat(values, starts), -count)[-count]
    some = np.flatnonzero(values >= least)
    rows: Times = some[values[some] >= np.partition(values[some], -count)[-count]]
    return rows


def largest_positions(values: NDArray[np.signedinteger[Any]], count: int) -> list[int]:
    """Return the positions of the `count` largest positive values, largest first; equal values in their order."""
    rows = rows_of_largest(values, count)
    rows = rows[values[rows] > 0]
    positions: list[int] = rows[np.argsort(-values[rows], kind="stable")[:count]].tolist()
    return positions


class Intervals(NamedTuple):
    """Two arrays of equal length, starts and ends, in ns."""

    start: Times
    end: Times


BEFORE_ALL = -(1 << 62)
EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Times, end: Times, *, ordered: bool = False) -> Intervals:
    """Merge any intervals into their union. Intervals without length add nothing.

    `ordered=True` skips the sort: `start` ascends already.
    """
    if not ordered:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    return ordered_union(start, end)[0]


def own_lengths(start: Times, end: Times) -> Times:
    """Return the ns of each interval that no earlier one covers, by ascending `start`; they add up to the union."""
    own, reach = np.empty(len(start), np.int64), BEFORE_ALL
    for block in blocks(len(start)):
        until = np.maximum.accumulate(np.append(reach, end[block]))
        reach = int(until[-1])
        own[block] = np.maximum(end[block] - np.maximum(start[block], until[:-1]), 0)
    return own


def ordered_union(start: Times, end: Times) -> tuple[Intervals, Times]:
    """Return the union of intervals whose `start` ascends, and the index of the interval that begins each member."""
    if len(start) == 0:
        return EMPTY, EMPTY.start
    keep = end > start
    chosen = None
    if not keep.all():
        chosen = np.flatnonzero(keep)
        start, end = start[chosen], end[chosen]
        if len(start) == 0:
            return EMPTY, EMPTY.start
    # Most work does not overlap the work before it; then each end is already the largest so far.
    reach = end if is_sorted(end) else np.maximum.accumulate(end)
    begins = np.empty(len(start), np.bool_)
    begins[0] = True
    np.greater(start[1:], reach[:-1], out=begins[1:])
    first = np.flatnonzero(begins)
    if len(first) == len(start):
        return Intervals(start, reach), first if chosen is None else chosen
    ends = np.empty(len(first), np.int64)
    ends[:-1] = reach[first[1:] - 1]
    ends[-1] = reach[-1]
    return Intervals(start[first], ends), first if chosen is None else chosen[first]


def union_length(start: Times, end: Times, rows: Rows) -> int:
    """Return the length in ns of the union of some intervals, whose starts ascend, without building the union."""
    reach, total = BEFORE_ALL, 0
    for block in blocks(len(rows)):
        some = rows[block].astype(np.intp)
        first, last = start[some], end[some]
        before = np.maximum.accumulate(np.concatenate([np.array([reach], np.int64), last]))
        reach = int(before[-1])
        total += int(np.maximum(last - np.maximum(first, before[:-1]), 0).sum())
    return total


def length(members: Intervals) -> int:
    """Return the total length of a union, in ns."""
    return int((members.end - members.start).sum())  # the sum of all ends alone may overflow


def complement(members: Intervals, start: int, end: int) -> Intervals:
    """Return the stretches of [start, end) that a union does not cover."""
    return gaps_between(clip(members, start, end), start, end)[0]


def gaps_between(members: Intervals, start: int, end: int) -> tuple[Intervals, slice]:
    """Return the stretches of [start, end) that a union inside it does not cover, and the member that ends each.

    Member number `len(members.start)` stands for `end`.
    """
    count = len(members.start)
    # Members do not touch, so only the stretches before the first and after the last member may be empty.
    ending = slice(int(count > 0 and members.start[0] <= start), count + int(count == 0 or members.end[-1] < end))
    if ending == slice(1, count):
        return Intervals(members.end[:-1], members.start[1:]), ending
    if start >= end:
        return EMPTY, slice(0, 0)
    starts, ends = np.append(start, members.end), np.append(members.start, end)
    return Intervals(starts[ending], ends[ending]), ending


def clip(members: Intervals, start: int, end: int) -> Intervals:
    """Return a union inside [start, end)."""
    low = int(np.searchsorted(members.end, start, side="right"))
    high = int(np.searchsorted(members.start, end, side="left"))
    if low >= high or start >= end:
        return EMPTY
    starts, ends = members.start[low:high], members.end[low:high]
    # Only the first member may begin before the window, and only the last may end after it.
    if starts[0] < start:
        starts = starts.copy()
        starts[0] = start
    if ends[-1] > end:
        ends = ends.copy()
        ends[-1] = end
    return Intervals(starts, ends)


def subtract(left: Intervals, right: Intervals) -> Intervals:
    """Return the times of the union `left` that the union `right` does not cover."""
    if len(left.start) == 0 or len(right.start) == 0:
        return left
    if len(left.start) > len(right.start):
        low = int(min(left.start[0], right.start[0]))
        high = int(max(left.end[-1], right.end[-1]))
        return intersect(left, complement(right, low, high))
    common = intersect(left, right)
    if len(common.start) == 0:
        return left
    # A remaining time begins where a member begins or a common one ends, and ends where the next one begins.
    start = np.sort(np.concatenate([left.start, common.end]), kind="stable")
    end = np.sort(np.concatenate([common.start, left.end]), kind="stable")
    some = np.flatnonzero(end > start)
    return Intervals(start[some], end[some])


class QueryParts(NamedTuple):
    """Pieces of queries: the index of the query that each belongs to, and its start and end in ns."""

    query: Times
    start: Times
    end: Times


def parts_in_queries(members: Intervals, start: Times, end: Times) -> QueryParts:
    """Return every piece of a union that lies in each query [start, end). Queries may overlap each other."""
    first = np.searchsorted(members.end, start, side="right")
    last = np.searchsorted(members.start, end, side="left")
    count = np.maximum(last - first, 0)
    query = np.repeat(np.arange(len(start)), count)
    if len(query) == 0:
        return QueryParts(query, *EMPTY)
    member = index_ranges(first, count)
    return QueryParts(
        query, np.maximum(start[query], members.start[member]), np.minimum(end[query], members.end[member])
    )


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """Return what two unions have in common."""
    few, many = (left, right) if len(left.start) <= len(right.start) else (right, left)
    pieces = [_intersect_block(Intervals(few.start[rows], few.end[rows]), many) for rows in blocks(len(few.start))]
    return pieces[0] if len(pieces) == 1 else Intervals(*map(np.concatenate, zip(EMPTY, *pieces, strict=True)))


def _intersect_block(few: Intervals, many: Intervals) -> Intervals:
    many = clip(many, int(few.start[0]), int(few.end[-1]))  # what the searches need stays in the processor's cache
    if len(many.start) == 0:
        return EMPTY
    first = np.searchsorted(many.end, few.start, side="right")
    # Often few members overlap any other: search the last overlap for these only.
    some = np.flatnonzero((few.end > many.start.take(first, mode="clip")) & (first < len(many.start)))
    if len(some) == 0:
        return EMPTY
    first, few_start, few_end = first[some], few.start[some], few.end[some]
    count = np.searchsorted(many.start, few_end, side="left") - first
    stop = np.cumsum(count)
    member = index_ranges(first, count)
    start, end = many.start[member], many.end[member]
    # Only the first overlapping member may begin before the interval, and only the last may end after it.
    start[stop - count] = np.maximum(start[stop - count], few_start)
    end[stop - 1] = np.minimum(end[stop - 1], few_end)
    return Intervals(start, end)


def overlap_length(left: Intervals, right: Intervals) -> int:
    """Return the length that two unions have in common, in ns."""
    return length(intersect(left, right))


def merge_disjoint(unions: Sequence[Intervals]) -> Intervals:
    """Merge disjoint unions into one ascending union."""
    nonempty = [each for each in unions if len(each.start)]
    if len(nonempty) < 2:
        return nonempty[0] if nonempty else EMPTY
    starts = np.concatenate([each.start for each in nonempty])
    ends = np.concatenate([each.end for each in nonempty])
    order = np.argsort(starts, kind="stable")
    return Intervals(starts[order], ends[order])


MEMBER_SEARCH_RATIO = 32  # when members are this many times fewer than queries, search members in queries


class Coverage(NamedTuple):
    """A union with running lengths, for the length of the union before any moment.

    `starts` are the members' starts. `running` is the length of all members before each member, and the total as one
    more entry.
    """

    starts: Times
    running: Times

    @classmethod
    def from_union(cls, members: Intervals) -> Coverage:
        """Compute the running lengths of a union."""
        running = np.zeros(len(members.start) + 1, np.int64)
        np.subtract(members.end, members.start, out=running[1:])
        np.cumsum(running, out=running)
        return cls(members.start, running)

    def union(self) -> Intervals:
        """Return the union."""
        return Intervals(self.starts, self.starts + np.diff(self.running))

    def member_at(self, moments: Times) -> Times:
        """Return the index of the last member that starts at or before each moment; -1 where there is none."""
        if len(self.starts) == 0 or len(moments) == 0:
            return np.full(len(moments), -1, np.int64)
        low, high = self._member_range(moments)
        index = np.searchsorted(self.starts[low:high], moments, side="right")
        index += low - 1
        return index

    def length_up_to(self, member: NDArray[np.integer], moments: Times) -> Times:
        """Return the length before each moment, in ns, given the `member_at` of each moment."""
        if len(self.starts) == 0 or len(moments) == 0:
            return np.zeros(len(moments), np.int64)
        before: Times = moments - self.starts[member]
        before += self.running[member]
        np.minimum(before, self.running[1:][member], out=before)
        if member.min() < 0:
            before[member < 0] = 0
        return before

    def length_before(self, moments: Times) -> Times:
        """Return the length of the union before each moment, in ns."""
        before = np.zeros(len(moments), np.int64)
        if len(self.starts):
            for block in blocks(len(moments)):
                before[block] = self._block_length_before(moments[block])
        return before

    def length_between(self, start: Times, end: Times) -> Times:
        """Return the covered length of each [start, end), in ns; 0 where end <= start."""
        covered = np.zeros(len(start), np.int64)
        if len(self.starts):
            for block in blocks(len(start)):
                first, last = start[block], end[block]
                after = self._block_length_before(np.maximum(first, last))
                np.subtract(after, self._block_length_before(first), out=covered[block])
        return covered

    def members_near(self, others: Intervals) -> Intervals:
        """Return the members that may overlap the members of another union."""
        if len(self.starts) == 0 or len(others.start) == 0:
            return EMPTY
        first = np.maximum(self.member_at(others.start), 0)
        near = index_ranges(first, self.member_at(others.end) + 1 - first)
        some = near[np.flatnonzero(np.diff(near, prepend=-1))]  # they ascend, and repeat where two others are near one
        return Intervals(self.starts[some], self.starts[some] + self.running[some + 1] - self.running[some])

    def overlapping_rows(self, start: Times, end: Times) -> Times:
        """Return the rows of [start, end) that overlap a member, ascending."""
        if len(self.starts) == 0 or len(start) == 0:
            return EMPTY.start
        if is_sorted(start) and is_sorted(end):
            low, high = self._member_range(np.array([start[0], end[-1]]))
            few = Coverage(self.starts[low:high], self.running[low : high + 1])
            few_members = len(few.starts) * MEMBER_SEARCH_RATIO <= len(start)
            if few_members and (rows := few._search_members(start, end)) is not None:
                return rows
        return np.flatnonzero(self.length_between(start, end))

    def _search_members(self, start: Times, end: Times) -> Times | None:
        """Return `overlapping_rows` of sorted rows; None if the search needs more memory than the rows."""
        first = np.searchsorted(end, self.starts, side="right")
        stop = np.searchsorted(start, self.union().end, side="left")
        count = np.maximum(stop - first, 0)
        if count.sum() > len(start):
            return None
        overlaps = np.zeros(len(start), np.bool_)
        overlaps[index_ranges(first, count)] = True
        return np.flatnonzero(overlaps & (end > start))

    def _block_length_before(self, moments: Times) -> Times:
        low, high = self._member_range(moments)
        few = Coverage(self.starts[low:high], self.running[low : high + 1])
        if len(few.starts) > 1:
            return few.length_up_to(np.searchsorted(few.starts, moments, side="right") - 1, moments)
        if len(few.starts) == 0:
            return np.zeros(len(moments), np.int64)
        before: Times = moments - few.starts
        before += few.running[0]
        return np.clip(before, few.running[0], few.running[1], out=before)

    def _member_range(self, moments: Times) -> tuple[int, int]:
        """Return the slice bounds of the members that can contain the moments.

        Moments mostly ascend, so a block of them needs few members, often one.
        """
        low, high = np.searchsorted(self.starts, (moments.min(), moments.max()), side="right").tolist()
        return max(low - 1, 0), high


def covered_length(members: Intervals, start: Times, end: Times) -> Times:
    """Return the length of each [start, end) that a union covers, in ns; 0 where end <= start.

    The queries may overlap each other and come in any order.
    """
    return Coverage.from_union(members).length_between(start, end)
