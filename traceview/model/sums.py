"""Sums over rows of a part of a capture, and how those of several parts merge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl

from traceview.intervals import Times

MANY = 1 << 20  # values below it are counted in an array
FEW = 1 << 13  # fewer values are sorted faster than such an array is filled
Sums = TypeVar("Sums")


class Counts(NamedTuple):
    """How often each of some values occurs, in ascending order: the counts of several parts of a capture add up."""

    values: Times
    counts: Times

    @classmethod
    def from_values(cls, values: Times) -> Counts:
        """Count equal values."""
        if len(values) < FEW:
            return cls(*np.unique(values, return_counts=True))
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
    def total(self) -> int:
        """The sum of the counted values."""
        return int((self.values * self.counts).sum())

    @property
    def median(self) -> float:
        """The median of the counted values; 0 without values."""
        until = np.cumsum(self.counts)
        if len(until) == 0:
            return 0.0
        low, high = np.searchsorted(until, ((until[-1] - 1) // 2, until[-1] // 2), side="right")
        return (int(self.values[low]) + int(self.values[high])) / 2


class KeyedSums(NamedTuple):
    """Sums by key: rows of `frame` that have equal `keys` are one row, and the other columns add up.

    Rows keep the order in which their keys first occur.
    """

    frame: pl.DataFrame
    keys: tuple[str, ...]

    @classmethod
    def from_rows(cls, frame: pl.DataFrame, *keys: str) -> KeyedSums:
        """Sum the rows with equal keys."""
        summed = frame.group_by(keys, maintain_order=True).agg(pl.exclude(keys).sum())
        return cls(summed.select(frame.columns), keys)


def merged_sums(parts: Sequence[Sums]) -> Sums:
    """Return the sums of all parts, in the order of time; each is a NamedTuple of the same type.

    A field is an int, Counts, KeyedSums, a NamedTuple of such fields, or a dict of them.
    """
    if len(parts) == 1:
        return parts[0]
    fields = zip(*parts, strict=True)
    return type(parts[0])(*map(_merged_values, fields))


def _merged_values(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        names = dict.fromkeys(name for each in values for name in each)
        return {name: _merged_values([each[name] for each in values if name in each]) for name in names}
    if isinstance(first, KeyedSums):
        return KeyedSums.from_rows(pl.concat([each.frame for each in values], how="vertical_relaxed"), *first.keys)
    if isinstance(first, Counts):
        return reduce(Counts.plus, values)
    return merged_sums(values) if isinstance(first, tuple) else sum(values)


def sum_mappings(mappings: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of the values of each key, in the order in which the keys first appear."""
    sums: dict[str, int] = {}
    for mapping in mappings:
        for name, value in mapping.items():
            sums[name] = sums.get(name, 0) + value
    return sums
