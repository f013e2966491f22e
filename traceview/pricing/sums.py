"""Figures that rules compute over rows, of the complete capture or of all of its slices."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from traceview.intervals import Times
from traceview.pricing.figures import median_reordering

MANY = 1 << 20  # values below it are counted in an array


class Counts(NamedTuple):
    """How often each of some values occurs, in ascending order: the counts of several parts of a capture add up."""

    values: Times
    counts: Times

    @classmethod
    def from_values(cls, values: Times) -> Counts:
        """Count equal values."""
        few = np.bincount(values[(values >= 0) & (values < MANY)])  # in a tenth of the time of a sort
        small = np.flatnonzero(few)
        large, counts = np.unique(values[(values < 0) | (values >= MANY)], return_counts=True)
        at = int(np.searchsorted(large, 0))  # negative values come first
        return cls(np.insert(large, at, small), np.insert(counts, at, few[small]))

    def plus(self, other: Counts) -> Counts:
        """Return the counts of both parts."""
        values, which = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        counts = np.zeros(len(values), np.int64)
        np.add.at(counts, which, np.concatenate([self.counts, other.counts]))
        return Counts(values, counts)

    @property
    def median(self) -> float:
        """The median of the counted values; 0 without values."""
        until = np.cumsum(self.counts)
        if len(until) == 0:
            return 0.0
        low, high = np.searchsorted(until, ((until[-1] - 1) // 2, until[-1] // 2), side="right")
        return (int(self.values[low]) + int(self.values[high])) / 2


Sum = TypeVar("Sum", int, dict[str, int], Counts)


class RuleSums:
    """Sums over rows that decide what rules claim. Where a capture is analysed in slices, they are those of all slices.

    A device's rules compute each sum from the rows that they see, and go on with what `total` returns. `in_parts` says
    that these are the rows of a part of the capture.
    """

    in_parts = False

    def total(self, _key: str, value: Sum) -> Sum:
        """Return the sum for the whole capture; `value` is that of the rows at hand, a number or numbers by name."""
        return value

    def occurs(self, _key: str) -> bool:
        """Return whether some part of the capture may have the sum `key`; a rule can look before it makes the sum."""
        return True

    def shown(self, _key: str, value: Sum) -> Sum:
        """Return a sum that a text shows. It may depend on what is claimed: no decision rests on it."""
        return value

    def median(self, _key: str, values: Times) -> float:
        """Return the median of some values of the capture for a text; `values` may be reordered."""
        return median_reordering(values)

    def choices(self, decided: bool) -> tuple[bool, ...]:
        """Return the outcomes of a decision that rests on a sum: the decided one; both while the sums are collected."""
        return (decided,)
