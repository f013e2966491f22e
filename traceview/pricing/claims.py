"""What rules collect of a part of a capture, and how the claims of a finding name it.

A rule labels members of a device's accounts: gaps, exposed times and kernels. These groups stay with the part. A claim
names a group, and labels in it, so that it means the same in every part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Intervals, Rows, Times

STEADY = "steady"  # the group of all gaps that begin in the steady part; every rule has it
Sums = TypeVar("Sums")
Labels: TypeAlias = Times | frozenset[str]


@dataclass(frozen=True)
class GapGroup:
    """Gaps of a device: `rows` are ascending rows of DevicePart's gaps, or a slice.

    `labels` has a number for each of `rows`; with `names`, it is an index into them. `limits` has the most ns that a
    claim takes from each of `rows`.
    """

    rows: Times | Rows | slice
    labels: Times | None = None
    names: tuple[str, ...] = ()
    limits: Times | None = None


@dataclass(frozen=True)
class TimeGroup:
    """Disjoint ascending times, in which exposed work of a device is claimed."""

    times: Intervals


@dataclass(frozen=True)
class KernelGroup:
    """Operations of a device: `rows` are ascending indices into DevicePart.activity.

    A claim takes a part of the own time of each, `fractions`; with `labels`, a claim gives the fraction of each label.
    `limits` has the largest fraction of each that a claim takes, before ComputeClaim.scale.
    """

    rows: Times | Rows
    fractions: NDArray[np.float64] | None = None
    labels: NDArray[np.integer[Any]] | None = None
    limits: NDArray[np.float64] | None = None


Group: TypeAlias = GapGroup | TimeGroup | KernelGroup


@dataclass(frozen=True)
class Collected(Generic[Sums]):
    """What a rule collects of a device in one part: sums, which merge over parts, and groups, which stay there.

    `sums` is a NamedTuple. Its fields are int, dict[str, int], Counts or KeyedSums (model/sums.py).
    """

    sums: Sums
    groups: Mapping[str, Group] = field(default_factory=dict)


@dataclass(frozen=True)
class IdleClaim:
    """A claim on the idle ns with these `causes` in the gaps of a group; None: in all gaps.

    `labels` limits it to members with these labels (ascending numbers, or names). `at_most` limits the ns claimed from
    each gap, summed over the causes.
    """

    causes: tuple[str, ...]
    group: str | None = None
    labels: Labels | None = None
    at_most: int | None = None


@dataclass(frozen=True)
class ExposedClaim:
    """A claim on the exposed ns of the accounts `keys` (pricing/accounts.py), inside the times of a group if given."""

    keys: tuple[str, ...]
    group: str | None = None


@dataclass(frozen=True)
class ComputeClaim:
    """A claim on a part of the compute time of the operations of a group.

    `fractions` maps labels to the claimed part of each operation's own time, where the group has labels: the time in
    which it computes and no operation that started earlier still does. Other labels are not claimed. `scale` multiplies
    the fractions.
    """

    group: str
    fractions: Mapping[int, float] | None = None
    scale: float = 1.0


Claim: TypeAlias = IdleClaim | ExposedClaim | ComputeClaim
