"""The members of a part's accounts that a claim names, as claims on its ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import EMPTY, Times
from traceview.pricing import ledger
from traceview.pricing.claims import (
    STEADY,
    Claim,
    ComputeClaim,
    ExposedClaim,
    GapGroup,
    Group,
    IdleClaim,
    KernelGroup,
    Labels,
    TimeGroup,
)

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
    return ledger.KernelClaim(rows, fractions * claim.scale)
