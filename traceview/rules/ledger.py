"""Who pays for which nanosecond: each ns in which a GPU did not compute is granted at most once.

A device's window less its compute falls into idle ns, one account for each (gap, cause), and exposed
ns, one account for each kind of work that ran while nothing computed. Rules claim in the order of
RULES; what was granted is gone for the rules after. So the findings of a device never add up to more
than `idle_ns + busy_ns - compute_ns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class Grant:
    """What claims were given: ns of each gap (shape: gaps) and disjoint intervals of exposed time."""

    idle: Times
    exposed: Intervals

    @property
    def total(self) -> int:
        """All of it, in ns."""
        return int(self.idle.sum()) + intervals.length(self.exposed)

    def inside(self, rows: NDArray[np.bool_], window: Window) -> int:
        """Return how much of it lies in the gaps `rows` marks and, where exposed, in a window, in ns."""
        start = np.clip(self.exposed.start, window.start, window.end)
        end = np.clip(self.exposed.end, window.start, window.end)
        return int((self.idle * rows).sum()) + int((end - start).sum())


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is left of one device's idle and exposed time.

    `gaps` holds, for each cause that any has, the ns left of each gap (shape: gaps); `exposed` holds, for each kind
    of work ("communication", "h2d pageable", ..., "memset"), the times left; no two of them meet.
    """

    count: int
    gaps: Mapping[str, Times]
    exposed: Mapping[str, Intervals]

    @classmethod
    def of(cls, gaps: pl.DataFrame, exposed: Mapping[str, Intervals]) -> Ledger:
        """Open the accounts of a device: the frame of its Gaps and what `exposed_work` returned."""
        causes = {cause: gaps[cause].to_numpy() for cause in CAUSES}
        return cls(len(gaps), {cause: ns for cause, ns in causes.items() if ns.any()}, exposed)

    @property
    def total(self) -> int:
        """What is left of everything, in ns."""
        idle = sum(int(left.sum()) for left in self.gaps.values())
        return idle + sum(intervals.length(left) for left in self.exposed.values())

    def grant(self, claims: tuple[Claim, ...]) -> tuple[Grant, Ledger]:
        """Grant what is left of the claims; return it with the ledger that remains."""
        ledger, idle, parts = self, np.zeros(self.count, np.int64), [EMPTY]
        for claim in claims:
            if isinstance(claim, Idle):
                granted, ledger = ledger._idle(claim)
                idle += granted
            else:
                pieces, ledger = ledger._exposed(claim)
                parts += pieces
        return Grant(idle, _joined(parts)), ledger

    def _idle(self, claim: Idle) -> tuple[Times, Ledger]:
        granted = np.zeros(self.count, np.int64)
        left = dict(self.gaps)
        for cause in (one for one in claim.causes if one in left):
            wanted = left[cause] if claim.rows is None else left[cause] * claim.rows
            if not wanted.any():
                continue
            if claim.at_most is not None:
                wanted = np.minimum(wanted, np.maximum(claim.at_most - granted, 0))
            granted += wanted
            left[cause] = left[cause] - wanted
        return granted, replace(self, gaps=left)

    def _exposed(self, claim: Exposed) -> tuple[list[Intervals], Ledger]:
        left, pieces = dict(self.exposed), []
        for key in claim.keys:
            if key not in left:
                continue
            part = left[key] if claim.within is None else intervals.intersect(left[key], claim.within)
            left[key] = intervals.subtract(left[key], part)
            pieces.append(part)
        return pieces, replace(self, exposed=left)


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
