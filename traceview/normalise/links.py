"""Which API call launched what: joined by (process, correlation id) (METRICS.md "Identity")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Links:
    """API calls by process and correlation id; the first call wins where one repeats."""

    process: NDArray[np.int64]
    correlation: NDArray[np.int64]

    @classmethod
    def of(cls, api: pl.DataFrame) -> Links:
        """Take the keys of model.API."""
        return cls(api["process"].to_numpy().astype(np.int64), api["correlation"].to_numpy())

    def rows(self, process: pl.Series, correlation: pl.Series) -> pl.Series:
        """Return the row of each launch in model.API; null for correlation id 0 and for strangers."""
        wanted = correlation.fill_null(0).to_numpy()
        of = process.to_numpy().astype(np.int64)
        found = np.full(len(wanted), -1, np.int64)
        for one in np.unique(of):
            asked, calls = of == one, self.process == one
            if asked.all() and calls.all():
                found = _lookup(self.correlation, np.arange(len(calls)), wanted)
            else:
                rows = np.flatnonzero(calls)
                found[asked] = _lookup(self.correlation[rows], rows, wanted[asked])
        # 0 is no key: unified-memory copies carry it and belong to nothing.
        missing = (found < 0) | (wanted == 0)
        series = pl.Series("launch", found, dtype=pl.Int64)
        return series.set(pl.Series(missing), None) if missing.any() else series


def _lookup(keys: NDArray[np.int64], rows: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(keys) == 0:
        return np.full(len(wanted), -1, np.int64)
    low, high = int(keys.min()), int(keys.max())
    if high - low > 16 * len(keys) + 1_000_000:
        return _search(keys, rows, wanted)
    table = np.full(high - low + 2, -1, np.int32)
    table[keys[::-1] - low] = rows[::-1]
    inside = (wanted >= low) & (wanted <= high)
    return table[np.where(inside, wanted - low, high - low + 1)].astype(np.int64)


def _search(keys: NDArray[np.int64], rows: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    place = np.minimum(np.searchsorted(ordered, wanted, side="left"), len(keys) - 1)
    return np.where(ordered[place] == wanted, rows[order[place]], -1)
