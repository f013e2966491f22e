"""Which API call launched what: joined by (process, correlation id) (METRICS.md "Identity")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import blocks
from traceview.normalise.codes import different, numbers


@dataclass(frozen=True, slots=True)
class Links:
    """API calls by process and correlation id; the first call wins where one repeats."""

    lookups: Mapping[int, _Lookup]

    @classmethod
    def of(cls, api: pl.DataFrame) -> Links:
        """Take the keys of model.API."""
        process, correlation = api["process"].to_numpy(), api["correlation"].to_numpy()
        if len(process) == 0:
            return cls({})
        if process.min() == process.max():
            return cls({int(process[0]): _lookup(correlation, None)})
        found = {}
        for one in different(api["process"].cast(pl.Int64)).to_list():
            rows = np.flatnonzero(process == one)
            found[one] = _lookup(correlation[rows], rows)
        return cls(found)

    def rows(self, process: pl.Series, correlation: pl.Series) -> pl.Series:
        """Return the row of each launch in model.API; null for correlation id 0 and for strangers."""
        wanted, of = numbers(correlation), process.to_numpy()
        found = np.full(len(wanted), -1, np.int64)
        for one, lookup in self.lookups.items():
            asked = of == one
            if asked.all():
                found = lookup.rows(wanted)
            elif asked.any():
                found[asked] = lookup.rows(wanted[asked])
        # 0 is no key: unified-memory copies carry it and belong to nothing.
        missing = (found < 0) | (wanted == 0)
        series = pl.Series("launch", found, dtype=pl.Int64)
        return series.set(pl.Series(missing), None) if missing.any() else series


class _Lookup(Protocol):
    def rows(self, wanted: NDArray[np.int64]) -> NDArray[np.int64]: ...


@dataclass(frozen=True, slots=True)
class _Dense:
    """A row, or -1, for each key from `low` on; the last entry is that of strangers."""

    low: int
    table: NDArray[np.int32]

    def rows(self, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        found = np.empty(len(wanted), np.int64)
        last = len(self.table) - 1
        for block in blocks(len(wanted)):
            offset = wanted[block] - self.low
            if offset.min() < 0 or offset.max() > last:
                offset = np.where((offset >= 0) & (offset < last), offset, last)
            found[block] = self.table[offset]
        return found


@dataclass(frozen=True, slots=True)
class _Sparse:
    """Keys far apart, ascending, and their rows."""

    keys: NDArray[np.int64]
    of: NDArray[np.int64]

    def rows(self, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        place = np.minimum(np.searchsorted(self.keys, wanted, side="left"), len(self.keys) - 1)
        return np.where(self.keys[place] == wanted, self.of[place], -1)


def _lookup(keys: NDArray[np.int64], rows: NDArray[np.int64] | None) -> _Lookup:
    """Prepare keys of calls, of which there are some; `rows` are theirs, None where each is its own number."""
    low, high = int(keys.min()), int(keys.max())
    if high - low > 16 * len(keys) + 1_000_000:
        order = np.argsort(keys, kind="stable")
        return _Sparse(keys[order], order if rows is None else rows[order])
    table = np.full(high - low + 2, -1, np.int32)
    # Backwards, so that of calls with one key the first is written last.
    for block in reversed(list(blocks(len(keys)))):
        of = np.arange(block.start, block.stop) if rows is None else rows[block]
        table[keys[block][::-1] - low] = of[::-1]
    return _Dense(low, table)
