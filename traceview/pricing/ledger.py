"""Accounts of a device's time, claims on them, and grants.

The ledger holds every ns of a device: idle ns in one account for each gap and cause, exposed ns in one account for
each kind of work, and compute ns in one account for each operation. A granted ns leaves its account, so it is granted
at most once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import EMPTY, Intervals, Rows, Times, integer_type
from traceview.model.analysis import Gaps
from traceview.model.frozen import dataclass
from traceview.model.trace import Window


class GapClaim(NamedTuple):
    """A claim on the idle ns with these `causes` in the gaps `rows` (ascending rows or a slice; None: all gaps).

    `at_most` limits the ns claimed from each of `rows`, summed over the causes (None: no limit).
    """

    causes: tuple[str, ...]
    rows: Times | Rows | slice | None = None
    at_most: Times | None = None


class TimeClaim(NamedTuple):
    """A claim on the exposed ns of the accounts `keys`, limited to the times in `within` (None: no limit)."""

    keys: tuple[str, ...]
    within: Intervals | None = None


@dataclass(frozen=True, slots=True)
class KernelClaim:
    """A claim on the compute time of operations: `fractions` of the own time of each of `rows`.

    `rows` are ascending indices into the device's Activity. The own time of an operation is the time in which it
    computes and no operation that started earlier still does.
    """

    rows: Times | Rows
    fractions: NDArray[np.float64]

    def wanted(self, own: Times) -> NDArray[Any]:
        """Return the ns that the claim asks of each of `rows`; `own` are the own times of all operations."""
        return own[self.rows] * self.fractions


Claim = GapClaim | TimeClaim | KernelClaim


class IdleGrant(NamedTuple):
    """The ns granted to one idle claim: for each cause, the ns of each of `rows`.

    `empties` is True if nothing of these causes is left in `rows` afterwards.
    """

    rows: Times | Rows | slice
    ns: Mapping[str, Times]
    empties: bool

    @property
    def ns_per_gap(self) -> Times:
        """The ns of each of `rows`, summed over the causes."""
        return sum_columns(list(self.ns.values()))

    def deduct_from(self, account: Times, cause: str) -> None:
        """Remove this grant from the account of a cause."""
        if self.empties:
            account[self.rows] = 0
        else:
            account[self.rows] -= self.ns[cause]


@dataclass(frozen=True, slots=True)
class Grant:
    """The time granted to the claims of a draft: `idle` ns of each gap in `rows`, `exposed` times, and compute.

    `exposed` is disjoint and ascending. `compute` is the ns of each of the operations `computing`. `idle_grants` and
    `exposed_grants` split the grant by account.
    """

    rows: Times | Rows | slice
    idle: Times
    exposed: Intervals
    idle_grants: tuple[IdleGrant, ...]
    exposed_grants: tuple[tuple[str, Intervals], ...]
    computing: Times | Rows = field(default_factory=lambda: EMPTY.start)
    compute: Times = field(default_factory=lambda: EMPTY.start)

    @property
    def total(self) -> int:
        """All granted ns."""
        return int(self.idle.sum()) + intervals.length(self.exposed) + int(self.compute.sum())

    @property
    def gaps(self) -> int:
        """The number of gaps with a granted ns."""
        return int(np.count_nonzero(self.idle))

    @property
    def causes(self) -> tuple[tuple[str, int], ...]:
        """The idle ns by cause, for each idle claim."""
        return tuple((cause, int(ns.sum())) for idle in self.idle_grants for cause, ns in idle.ns.items())

    def gap_row(self, position: int) -> int:
        """Return the row of the gap at a position of `idle`."""
        return position + self.rows.start if isinstance(self.rows, slice) else int(self.rows[position])

    def total_inside(self, gaps: slice, window: Window) -> int:
        """Return the ns granted from a slice of gaps and from exposed time inside a window.

        Compute is claimed in the steady part only, so all of it is inside.
        """
        if isinstance(self.rows, slice):
            first, last = (max(edge - self.rows.start, 0) for edge in (gaps.start, gaps.stop))
        else:
            first, last = np.searchsorted(self.rows, np.array([gaps.start, gaps.stop], self.rows.dtype)).tolist()
        exposed = intervals.length(intervals.clip(self.exposed, window.start, window.end))
        return int(self.idle[first:last].sum()) + exposed + int(self.compute.sum())


@dataclass(slots=True)
class Ledger:
    """The idle, exposed and compute time of one device that is not granted yet.

    `idle` holds for each cause the ns left in each of `count` gaps. `exposed` holds for each kind of work
    ("communication", "h2d pageable", ..., "memset") the times left. The times of two kinds do not overlap.
    `own_compute` is the own time of each of the device's operations, and `compute` what is left of it. The ledger owns
    its idle accounts; they are int32 where the ns of each gap fit.
    """

    count: int
    idle: dict[str, Times]
    exposed: dict[str, Intervals]
    own_compute: Times = field(default_factory=lambda: EMPTY.start)
    compute: Times = field(default_factory=lambda: EMPTY.start)

    @classmethod
    def from_gaps(
        cls,
        gaps: Gaps,
        exposed: Mapping[str, Intervals],
        own: Times = EMPTY.start,
        until: int | None = None,
        idle_until: int | None = None,
    ) -> Ledger:
        """Open the accounts of a device from its gaps and the results of `exposed_work` and `own_compute`.

        Work after `until` costs nothing, nor do gaps that begin at or after `idle_until`, which is `until` if absent.
        """
        columns = {cause: gaps.frame[cause].to_numpy() for cause, total in gaps.causes.items() if total}
        kind = integer_type(sum(int(ns.max(initial=0)) for ns in columns.values()))
        accounts = {cause: ns.astype(kind) for cause, ns in columns.items()}
        own = own.astype(integer_type(int(own.max(initial=0))), copy=False)
        work, count = dict(exposed), len(gaps.frame)
        if until is not None:
            last = until if idle_until is None else idle_until
            first = int(np.searchsorted(gaps.frame["start"].to_numpy(), last))
            work = {key: intervals.clip(times, intervals.BEFORE_ALL, until) for key, times in exposed.items()}
            for left in accounts.values():
                left[first:] = 0
        return cls(count, accounts, work, own, own)

    def grant(self, claims: tuple[Claim, ...], at_most: int | None = None) -> Grant:
        """Return what is left of the claims, earlier claims first, up to a total. The accounts do not change."""
        idle_grants: list[IdleGrant] = []
        exposed_grants: list[tuple[str, Intervals]] = []
        computing: Times | Rows = EMPTY.start
        compute = EMPTY.start
        for claim in claims:
            if isinstance(claim, KernelClaim):
                computing = claim.rows
                compute = np.minimum(self.compute[computing], claim.wanted(self.own_compute))
            elif isinstance(claim, TimeClaim):
                exposed_grants += self._grant_exposed(claim, tuple(exposed_grants))
            elif any(cause in self.idle for cause in claim.causes):
                idle_grants.append(self._grant_idle(claim, idle_grants))
        if at_most is not None:
            idle_grants, exposed_grants = _first_granted(idle_grants, exposed_grants, at_most)
        exposed, (idle, ns) = (
            intervals.merge_disjoint([times for _, times in exposed_grants]),
            self._sum_idle(idle_grants),
        )
        granted = (tuple(idle_grants), tuple(exposed_grants))
        return Grant(idle, ns, exposed, *granted, computing, compute.astype(self.compute.dtype))

    def deduct(self, grant: Grant) -> None:
        """Remove granted time from the accounts."""
        for idle_grant in grant.idle_grants:
            for cause in idle_grant.ns:
                idle_grant.deduct_from(self.idle[cause], cause)
        if len(grant.computing):
            self.compute = self.compute.copy() if self.compute is self.own_compute else self.compute
            self.compute[grant.computing] -= grant.compute
        for key, times in grant.exposed_grants:
            all_of_it = times is self.exposed[key]
            self.exposed[key] = EMPTY if all_of_it else intervals.subtract(self.exposed[key], times)

    def _grant_idle(self, claim: GapClaim, earlier: list[IdleGrant]) -> IdleGrant:
        rows, limit = slice(0, self.count) if claim.rows is None else claim.rows, claim.at_most
        if limit is not None and isinstance(rows, slice):
            rows = np.arange(rows.start, rows.stop)
        ns: dict[str, Times] = {}
        for cause in claim.causes:
            if cause not in self.idle:
                continue
            left = self.idle[cause]
            for grant in earlier:
                if cause in grant.ns:
                    left = left.copy()
                    grant.deduct_from(left, cause)
            if limit is None:
                ns[cause] = left[rows].copy() if isinstance(rows, slice) else left[rows]
            else:
                ns[cause] = np.minimum(left[rows], limit).astype(left.dtype)
                limit = limit - ns[cause]
        return IdleGrant(rows, ns, empties=limit is None)

    def _sum_idle(self, grants: list[IdleGrant]) -> tuple[Times | Rows | slice, Times]:
        if not grants:
            return slice(0, 0), EMPTY.start
        sums = [grant.ns_per_gap for grant in grants]
        if len(grants) == 1:
            return grants[0].rows, sums[0]
        idle = np.zeros(self.count, np.result_type(*sums))
        for grant, ns in zip(grants, sums, strict=True):
            idle[grant.rows] += ns
        return slice(0, self.count), idle

    def _grant_exposed(
        self, claim: TimeClaim, earlier: tuple[tuple[str, Intervals], ...]
    ) -> Iterator[tuple[str, Intervals]]:
        for key in claim.keys:
            if key not in self.exposed:
                continue
            left = self.exposed[key]
            for other, times in earlier:
                if other == key:
                    left = intervals.subtract(left, times)
            yield key, left if claim.within is None else intervals.intersect(left, claim.within)


def _first_granted(
    idle: list[IdleGrant], exposed: list[tuple[str, Intervals]], at_most: int
) -> tuple[list[IdleGrant], list[tuple[str, Intervals]]]:
    """Return the first `at_most` ns of grants: exposed before idle time, each in the order of time."""
    limited_exposed, limited_idle = [], []
    for key, times in exposed:
        kept = _first_ns(times.end - times.start, at_most)
        some = np.flatnonzero(kept)
        limited_exposed.append((key, Intervals(times.start[some], times.start[some] + kept[some])))
        at_most -= int(kept.sum())
    for grant in idle:
        ns = {}
        for cause, values in grant.ns.items():
            ns[cause] = _first_ns(values, at_most)
            at_most -= int(ns[cause].sum())
        limited_idle.append(IdleGrant(grant.rows, ns, empties=False))
    return limited_idle, limited_exposed


def _first_ns(values: Times, at_most: int) -> Times:
    """Return the first ns of values, up to a total."""
    until = np.cumsum(values)
    if len(values) == 0 or until[-1] <= at_most:
        return values
    kept: Times = np.clip(at_most - (until - values), 0, values)
    return kept


def sum_columns(columns: Sequence[Times]) -> Times:
    """Return the sum of columns; at most one array is allocated."""
    if len(columns) == 1:
        return columns[0]
    total = columns[0] + columns[1]
    for column in columns[2:]:
        total += column
    return total
