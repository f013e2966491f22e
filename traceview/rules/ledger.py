"""Who pays for which nanosecond: each ns in which a GPU did not compute is granted at most once.

A device's window less its compute falls into idle ns, one account for each (gap, cause), and exposed
ns, one account for each kind of work that ran while nothing computed. Rules claim in the order of
RULES; what was granted is gone for the rules after. So the findings of a device never add up to more
than `idle_ns + busy_ns - compute_ns`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import EMPTY, Intervals, Times
from traceview.measure.activity import Activity
from traceview.model import CAUSES, CLASSES, KINDS, MEMORIES, Trace, Window

COMMUNICATION = "communication"
MEMSET = "memset"


@dataclass(frozen=True, slots=True)
class Idle:
    """A claim on idle ns: `causes` of the gaps in `rows` (None: all), in each `at_most` ns (None: all)."""

    causes: tuple[str, ...]
    rows: NDArray[np.bool_] | None = None
    at_most: Times | None = None


@dataclass(frozen=True, slots=True)
class Exposed:
    """A claim on exposed ns: the accounts named, `within` a union of times (None: all)."""

    keys: tuple[str, ...]
    within: Intervals | None = None


Claim = Idle | Exposed


class Account(NamedTuple):
    """What is left of one cause: the rows of the gaps that have some, ascending, and the ns of each."""

    rows: Times
    ns: Times

    @classmethod
    def of(cls, ns: Times) -> Account:
        """Open an account of so many ns of each gap."""
        rows = np.flatnonzero(ns)
        return cls(rows, ns[rows])

    def without(self, taken: Taken) -> Account:
        """Return what is left when something was taken of it."""
        ns = self.ns.copy()
        ns[taken.at] -= taken.ns
        some = np.flatnonzero(ns)
        return Account(self.rows[some], ns[some])


class Taken(NamedTuple):
    """What a claim is given of one account: places in it, the rows of gaps there, and the ns of each."""

    cause: str
    at: Times | slice
    rows: Times
    ns: Times


@dataclass(frozen=True, slots=True)
class Grant:
    """What claims are given: parts of the accounts of `count` gaps, and of those of exposed time, in their order.

    `exposed` is all of the latter, disjoint, in order of time.
    """

    count: int
    taken: tuple[Taken, ...]
    pieces: tuple[tuple[str, Intervals], ...]
    exposed: Intervals

    @property
    def idle(self) -> Times:
        """The ns of each gap (shape: gaps)."""
        idle = np.zeros(self.count, np.int64)
        for one in self.taken:
            idle[one.rows] += one.ns
        return idle

    @property
    def total(self) -> int:
        """All of it, in ns."""
        return sum(int(one.ns.sum()) for one in self.taken) + intervals.length(self.exposed)

    @property
    def gaps(self) -> int:
        """The number of gaps that it has a part of."""
        if len(self.taken) < 2:
            return sum(len(one.rows) for one in self.taken)
        some = np.zeros(self.count, np.bool_)
        for one in self.taken:
            some[one.rows] = True
        return int(np.count_nonzero(some))

    def inside(self, rows: NDArray[np.bool_], window: Window) -> int:
        """Return how much of it lies in the gaps `rows` marks and, where exposed, in a window, in ns."""
        start = np.clip(self.exposed.start, window.start, window.end)
        end = np.clip(self.exposed.end, window.start, window.end)
        return sum(int(one.ns[rows[one.rows]].sum()) for one in self.taken) + int((end - start).sum())


@dataclass(slots=True)
class Ledger:
    """What is left of one device's idle and exposed time.

    `gaps` holds an account for each cause that any of `count` gaps has; `exposed` holds, for each kind of work
    ("communication", "h2d pageable", ..., "memset"), the times left; no two of them meet.
    """

    count: int
    gaps: dict[str, Account]
    exposed: dict[str, Intervals]

    @classmethod
    def of(cls, gaps: pl.DataFrame, exposed: Mapping[str, Intervals]) -> Ledger:
        """Open the accounts of a device: the frame of its Gaps and what `exposed_work` returned."""
        accounts = {cause: Account.of(gaps[cause].to_numpy()) for cause in CAUSES}
        return cls(len(gaps), {cause: one for cause, one in accounts.items() if len(one.rows)}, dict(exposed))

    @property
    def total(self) -> int:
        """What is left of everything, in ns."""
        idle = sum(int(left.ns.sum()) for left in self.gaps.values())
        return idle + sum(intervals.length(left) for left in self.exposed.values())

    def grant(self, claims: tuple[Claim, ...]) -> Grant:
        """Return what is left of the claims, each before those after it; nothing is taken away yet."""
        taken: list[Taken] = []
        pieces: list[tuple[str, Intervals]] = []
        for claim in claims:
            if isinstance(claim, Idle):
                taken += self._idle(claim, tuple(taken))
            else:
                pieces += self._exposed(claim, tuple(pieces))
        return Grant(self.count, tuple(taken), tuple(pieces), _joined([EMPTY, *(part for _, part in pieces)]))

    def take(self, grant: Grant) -> None:
        """Take away what was granted."""
        for one in grant.taken:
            self.gaps[one.cause] = self.gaps[one.cause].without(one)
        for key, part in grant.pieces:
            self.exposed[key] = intervals.subtract(self.exposed[key], part)

    def _idle(self, claim: Idle, before: tuple[Taken, ...]) -> Iterator[Taken]:
        claimed = None if claim.at_most is None else np.zeros(self.count, np.int64)
        for cause in (one for one in claim.causes if one in self.gaps):
            left = self.gaps[cause]
            for one in (one for one in before if one.cause == cause):
                left = left.without(one)
            at: Times | slice = slice(None) if claim.rows is None else np.flatnonzero(claim.rows[left.rows])
            rows, ns = left.rows[at], left.ns[at]
            if claim.at_most is not None and claimed is not None:
                ns = np.minimum(ns, np.maximum(claim.at_most[rows] - claimed[rows], 0))
                claimed[rows] += ns
            some = ns > 0
            if not some.all():
                at, rows, ns = np.arange(len(left.rows))[at][some], rows[some], ns[some]
            if len(rows):
                yield Taken(cause, at, rows, ns)

    def _exposed(self, claim: Exposed, before: tuple[tuple[str, Intervals], ...]) -> Iterator[tuple[str, Intervals]]:
        for key in (one for one in claim.keys if one in self.exposed):
            left = self.exposed[key]
            for _, part in (one for one in before if one[0] == key):
                left = intervals.subtract(left, part)
            yield key, left if claim.within is None else intervals.intersect(left, claim.within)


def _joined(parts: list[Intervals]) -> Intervals:
    """Return disjoint unions as one, in order."""
    starts = np.concatenate([part.start for part in parts])
    ends = np.concatenate([part.end for part in parts])
    order = np.argsort(starts, kind="stable")
    return Intervals(starts[order], ends[order])


def copy_key(kind: str, memory: str) -> str:
    """Return the account of one kind of copy: "h2d pageable"."""
    return f"{kind} {memory}"


def exposed_work(trace: Trace, of: Activity) -> dict[str, Intervals]:
    """Return when each kind of work ran while nothing computed, each ns once.

    Where several ran at once, communication comes first, then copies in the order of KINDS (h2d, d2h,
    ...) and MEMORIES, then memset. The lengths add up to the device's busy less its compute.
    """
    free = intervals.complement(of.compute, of.window.start, of.window.end)
    found, taken = {}, EMPTY
    for key, members in _members(trace, of):
        work = intervals.union(of.start[members], of.end[members], ordered=True)
        found[key] = intervals.subtract(intervals.intersect(work, free), taken)
        taken = _joined([taken, found[key]])
    return found


def _members(trace: Trace, of: Activity) -> list[tuple[str, Times]]:
    groups = [(COMMUNICATION, np.flatnonzero(of.codes == CLASSES.index("communication")))]
    copies = np.flatnonzero(of.codes == CLASSES.index("copy"))
    rows = of.rows[copies]
    kinds = trace.operations["kind"].to_physical().to_numpy()[rows].astype(np.int64)
    memories = trace.operations["memory"].to_physical().to_numpy()[rows].astype(np.int64)
    pair = kinds * len(MEMORIES) + memories
    for code in np.unique(pair):
        kind, memory = divmod(int(code), len(MEMORIES))
        groups.append((copy_key(KINDS[kind], MEMORIES[memory]), copies[pair == code]))
    groups.append((MEMSET, np.flatnonzero(of.codes == CLASSES.index("memset"))))
    return groups
