"""What rules collect of a part of a capture, how the claims of a finding name it, and what they mean in a ledger.

A rule labels members of a device's accounts: gaps, exposed times and kernels. These groups stay with the part. A claim
names a group, and labels in it, so that it means the same in every part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import EMPTY, Intervals, Rows, Times
from traceview.pricing import ledger

STEADY = "steady"  # the group of all gaps that begin in the steady part; every rule has it
Sums = TypeVar("Sums")
Labels: TypeAlias = Times | frozenset[str]


class GapGroup(NamedTuple):
    """Gaps of a device: `rows` are ascending rows of DevicePart's gaps, or a slice.

    `labels` has a number for each of `rows`; with `names`, it is an index into them. `limits` has the most ns that a
    claim takes from each of `rows`.
    """

    rows: Times | Rows | slice
    labels: Times | None = None
    names: tuple[str, ...] = ()
    limits: Times | None = None


class TimeGroup(NamedTuple):
    """Disjoint ascending times, in which exposed work of a device is claimed."""

    times: Intervals


class KernelGroup(NamedTuple):
    """Operations of a device: `rows` are ascending indices into DevicePart.activity.

    A claim takes a part of the own time of each, `fractions`; with `labels`, a claim gives the fraction of each label,
    or chooses labels by name: with `names`, a label is an index into them. `limits` has the largest fraction of each
    that a claim takes, before ComputeClaim.scale.
    """

    rows: Times | Rows
    fractions: NDArray[np.float64] | None = None
    labels: NDArray[np.integer[Any]] | None = None
    limits: NDArray[np.float64] | None = None
    names: tuple[str, ...] = ()


Group: TypeAlias = GapGroup | TimeGroup | KernelGroup


@dataclass(frozen=True)
class Collected(Generic[Sums]):
    """What a rule collects of a device in one part: sums, which merge over parts, and groups, which stay there.

    `sums` is a NamedTuple. Its fields are int, dict[str, int], Counts or KeyedSums (model/sums.py).
    """

    sums: Sums
    groups: Mapping[str, Group] = field(default_factory=dict)


class IdleClaim(NamedTuple):
    """A claim on the idle ns with these `causes` in the gaps of a group; None: in all gaps.

    `labels` limits it to members with these labels (ascending numbers, or names). `at_most` limits the ns claimed from
    each gap, summed over the causes.
    """

    causes: tuple[str, ...]
    group: str | None = None
    labels: Labels | None = None
    at_most: int | None = None


class ExposedClaim(NamedTuple):
    """A claim on the exposed ns of the accounts `keys` (pricing/accounts.py), inside the times of a group if given."""

    keys: tuple[str, ...]
    group: str | None = None


class ComputeClaim(NamedTuple):
    """A claim on a part of the compute time of the operations of a group.

    `fractions` maps labels to the claimed part of each operation's own time, where the group has labels: the time in
    which it computes and no operation that started earlier still does. Other labels are not claimed. `scale` multiplies
    the fractions. `labels` limits the claim to operations with these names as labels.
    """

    group: str
    fractions: Mapping[int, float] | None = None
    scale: float = 1.0
    labels: frozenset[str] | None = None


Claim: TypeAlias = IdleClaim | ExposedClaim | ComputeClaim


NO_ROWS = EMPTY.start
SomeGroup = TypeVar("SomeGroup", GapGroup, TimeGroup, KernelGroup)


def resolve(claim: Claim, groups: Mapping[str, Group], steady: slice) -> ledger.Claim:
    """Return a claim on the ledger of a device in one part; `groups` are those that the rule collected there.

    `steady` are the gaps that begin in the steady part. A group that the rule did not collect there is empty.
    """
    if isinstance(claim, IdleClaim):
        return _idle_claim(claim, {STEADY: GapGroup(steady), **groups})
    if isinstance(claim, ExposedClaim):
        return _exposed_claim(claim, groups)
    return _compute_claim(claim, groups)


def _group(groups: Mapping[str, Group], name: str, empty: SomeGroup, members: str) -> SomeGroup:
    """Return the group with this name, or `empty` if there is none. Raises TypeError for other members."""
    group = groups.get(name, empty)
    if not isinstance(group, type(empty)):
        raise TypeError(f"{name} is not a group of {members}")
    return group


def _idle_claim(claim: IdleClaim, groups: Mapping[str, Group]) -> ledger.GapClaim:
    if claim.group is None:
        return ledger.GapClaim(claim.causes)
    group = _group(groups, claim.group, GapGroup(NO_ROWS), "gaps")
    rows, limits = group.rows, group.limits
    if claim.labels is not None:
        chosen = _have_labels(group, claim.labels)
        rows = np.arange(rows.start, rows.stop)[chosen] if isinstance(rows, slice) else rows[chosen]
        limits = None if limits is None else limits[chosen]
    if claim.at_most is not None:
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        each = np.full(count, claim.at_most)
        limits = each if limits is None else np.minimum(limits, each)
    return ledger.GapClaim(claim.causes, rows, limits)


def _have_labels(group: GapGroup, labels: Labels) -> NDArray[np.bool_]:
    """Return which members of a group have one of these labels."""
    if group.labels is None:
        return np.zeros(0, np.bool_)
    if isinstance(labels, frozenset):
        return np.array([name in labels for name in group.names], np.bool_)[group.labels]
    return np.isin(group.labels, labels)


def _exposed_claim(claim: ExposedClaim, groups: Mapping[str, Group]) -> ledger.TimeClaim:
    if claim.group is None:
        return ledger.TimeClaim(claim.keys)
    return ledger.TimeClaim(claim.keys, _group(groups, claim.group, TimeGroup(EMPTY), "times").times)


def _compute_claim(claim: ComputeClaim, groups: Mapping[str, Group]) -> ledger.KernelClaim:
    group = _group(groups, claim.group, KernelGroup(NO_ROWS, np.empty(0)), "kernels")
    rows: Times = np.asarray(group.rows)
    if claim.labels is not None and group.labels is not None:  # such a group has no fractions
        rows = rows[np.array([name in claim.labels for name in group.names], np.bool_)[group.labels]]
        return ledger.KernelClaim(rows, np.full(len(rows), claim.scale))
    fractions = np.ones(len(rows)) if group.fractions is None else group.fractions
    if claim.fractions is not None and group.labels is not None:
        by_label = np.zeros(1 + max((int(group.labels.max(initial=0)), *claim.fractions)))
        by_label[list(claim.fractions)] = list(claim.fractions.values())
        fractions = fractions * by_label[group.labels]
    if group.limits is not None:
        fractions = np.minimum(fractions, group.limits)
    chosen = fractions > 0
    if not chosen.all():
        rows, fractions = rows[chosen], fractions[chosen]
    return ledger.KernelClaim(rows, fractions if claim.scale == 1 else fractions * claim.scale)
