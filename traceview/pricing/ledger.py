"""Who pays for which nanosecond: each ns in which a GPU did not compute is granted at most once.

A device's window less its compute falls into idle ns, one account for each (gap, cause), and exposed
ns, one account for each kind of work that ran while nothing computed. Rules claim in the order of
RULES; what was granted is gone for the rules after. So the findings of a device never add up to more
than `idle_ns + busy_ns - compute_ns`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traceview import intervals
from traceview.intervals import EMPTY, Intervals, Rows, Times
from traceview.measure.activity import Activity
from traceview.measure.copies import Copies
from traceview.model.analysis import Gaps
from traceview.model.trace import CLASSES, Window

COMMUNICATION = "communication"
MEMSET = "memset"


@dataclass(frozen=True, slots=True)
class Idle:
    """A claim on idle ns: `causes` of the gaps in `rows` (ascending, or a stretch; None: all).

    `at_most` bounds what is claimed of each of `rows`, over all causes (None: all of it).
    """

    causes: tuple[str, ...]
    rows: Times | Rows | slice | None = None
    at_most: Times | None = None


@dataclass(frozen=True, slots=True)
class Exposed:
    """A claim on exposed ns: the accounts named, `within` a union of times (None: all)."""

    keys: tuple[str, ...]
    within: Intervals | None = None


Claim = Idle | Exposed


class Taken(NamedTuple):
    """What one claim is given: the gaps it is about, and the ns of each of them by cause.

    `whole` says that nothing is left of these causes there.
    """

    rows: Times | Rows | slice
    ns: Mapping[str, Times]
    whole: bool

    @property
    def each(self) -> Times:
        """The ns of each of `rows`, over all causes."""
        return added(list(self.ns.values()))

    def leaves(self, cause: str, left: Times, copied: bool) -> Times:
        """Return what is left of an account: in place if it is a copy, and where that does not take longer."""
        if isinstance(self.rows, slice):
            rest = np.zeros(len(left), np.int64)
            rest[: self.rows.start], rest[self.rows.stop :] = left[: self.rows.start], left[self.rows.stop :]
            return rest
        rest = left if copied else left.copy()
        if self.whole:
            rest[self.rows] = 0
        else:
            rest[self.rows] -= self.ns[cause]
        return rest


@dataclass(frozen=True, slots=True)
class Grant:
    """What claims are given: `idle` ns of each of `rows`, and all of `exposed`, disjoint, in order of time.

    `taken` and `pieces` say of which accounts.
    """

    rows: Times | Rows | slice
    idle: Times
    exposed: Intervals
    taken: tuple[Taken, ...]
    pieces: tuple[tuple[str, Intervals], ...]

    @property
    def total(self) -> int:
        """All of it, in ns."""
        return int(self.idle.sum()) + intervals.length(self.exposed)

    @property
    def gaps(self) -> int:
        """The number of gaps that it has a part of."""
        return int(np.count_nonzero(self.idle))

    def gap(self, place: int) -> int:
        """Return the row of the gap at one place of `idle`."""
        return place + self.rows.start if isinstance(self.rows, slice) else int(self.rows[place])

    def inside(self, gaps: slice, window: Window) -> int:
        """Return how much of it lies in a stretch of gaps and, where exposed, in a window, in ns."""
        if isinstance(self.rows, slice):
            first, last = (max(edge - self.rows.start, 0) for edge in (gaps.start, gaps.stop))
        else:
            first, last = np.searchsorted(self.rows, np.array([gaps.start, gaps.stop], self.rows.dtype)).tolist()
        return int(self.idle[first:last].sum()) + intervals.length(
            intervals.clip(self.exposed, window.start, window.end)
        )


@dataclass(slots=True)
class Ledger:
    """What is left of one device's idle and exposed time.

    `gaps` holds the ns left of each of `count` gaps for each cause that any has; `exposed` holds, for each kind of
    work ("communication", "h2d pageable", ..., "memset"), the times left; no two of them meet.
    """

    count: int
    gaps: dict[str, Times]
    exposed: dict[str, Intervals]

    @classmethod
    def of(cls, gaps: Gaps, exposed: Mapping[str, Intervals]) -> Ledger:
        """Open the accounts of a device: its gaps and what `exposed_work` returned."""
        accounts = {cause: gaps.frame[cause].to_numpy() for cause, total in gaps.causes.items() if total}
        return cls(gaps.count, accounts, dict(exposed))

    @property
    def total(self) -> int:
        """What is left of everything, in ns."""
        idle = sum(int(left.sum()) for left in self.gaps.values())
        return idle + sum(intervals.length(left) for left in self.exposed.values())

    def grant(self, claims: tuple[Claim, ...]) -> Grant:
        """Return what is left of the claims, each before those after it; nothing is taken away yet."""
        taken: list[Taken] = []
        pieces: list[tuple[str, Intervals]] = []
        for claim in claims:
            if isinstance(claim, Exposed):
                pieces += self._exposed(claim, tuple(pieces))
            elif any(cause in self.gaps for cause in claim.causes):
                taken.append(self._idle(claim, taken))
        return Grant(*self._summed(taken), _joined([part for _, part in pieces]), tuple(taken), tuple(pieces))

    def take(self, grant: Grant) -> None:
        """Take away what was granted."""
        for one in grant.taken:
            for cause in one.ns:
                # An account is a measure's own column, which nothing writes to, until something of it is taken.
                left = self.gaps[cause]
                self.gaps[cause] = one.leaves(cause, left, copied=left.flags.writeable)
        for key, part in grant.pieces:
            whole = part is self.exposed[key]
            self.exposed[key] = EMPTY if whole else intervals.subtract(self.exposed[key], part)

    def _idle(self, claim: Idle, before: list[Taken]) -> Taken:
        rows, bound = slice(0, self.count) if claim.rows is None else claim.rows, claim.at_most
        if bound is not None and isinstance(rows, slice):
            rows = np.arange(rows.start, rows.stop)
        given: dict[str, Times] = {}
        for cause in (one for one in claim.causes if one in self.gaps):
            left = self.gaps[cause]
            for one in (one for one in before if cause in one.ns):
                left = one.leaves(cause, left, copied=False)
            given[cause] = left[rows] if bound is None else np.minimum(left[rows], bound)
            bound = None if bound is None else bound - given[cause]
        return Taken(rows, given, whole=bound is None)

    def _summed(self, taken: list[Taken]) -> tuple[Times | Rows | slice, Times]:
        if not taken:
            return slice(0, 0), EMPTY.start
        if len(taken) == 1:
            return taken[0].rows, taken[0].each
        idle = np.zeros(self.count, np.int64)
        for one in taken:
            idle[one.rows] += one.each
        return slice(0, self.count), idle

    def _exposed(self, claim: Exposed, before: tuple[tuple[str, Intervals], ...]) -> Iterator[tuple[str, Intervals]]:
        for key in (one for one in claim.keys if one in self.exposed):
            left = self.exposed[key]
            for _, part in (one for one in before if one[0] == key):
                left = intervals.subtract(left, part)
            yield key, left if claim.within is None else intervals.intersect(left, claim.within)


def added(columns: Sequence[Times]) -> Times:
    """Return the sum of columns, with one array made."""
    if len(columns) == 1:
        return columns[0]
    total = columns[0] + columns[1]
    for column in columns[2:]:
        total += column
    return total


def _joined(parts: list[Intervals]) -> Intervals:
    """Return disjoint unions as one, in order."""
    some = [part for part in parts if len(part.start)]
    if len(some) < 2:
        return some[0] if some else EMPTY
    starts = np.concatenate([part.start for part in some])
    ends = np.concatenate([part.end for part in some])
    order = np.argsort(starts, kind="stable")
    return Intervals(starts[order], ends[order])


def copy_key(kind: str, memory: str) -> str:
    """Return the account of one kind of copy: "h2d pageable"."""
    return f"{kind} {memory}"


def exposed_work(of: Activity, copies: Copies) -> dict[str, Intervals]:
    """Return when each kind of work ran while nothing computed, each ns once.

    Where several ran at once, communication comes first, then copies in the order of KINDS (h2d, d2h,
    ...) and MEMORIES, then memset. The lengths add up to the device's busy less its compute.
    """
    found: dict[str, Intervals] = {}
    before = [of.compute]
    for key, members in _members(of, copies):
        work = intervals.union(of.start[members], of.end[members], ordered=True)
        found[key] = work
        for other in before:
            found[key] = intervals.subtract(found[key], other)
        before.append(work)
    return found


def _members(of: Activity, copies: Copies) -> Iterator[tuple[str, Times]]:
    yield COMMUNICATION, np.flatnonzero(of.codes == CLASSES.index("communication"))
    for kind, memory, members in copies.by_pair():
        yield copy_key(kind, memory), members
    yield MEMSET, np.flatnonzero(of.codes == CLASSES.index("memset"))
