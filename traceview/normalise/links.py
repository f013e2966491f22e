"""Which API call launched what: joined by (process, correlation id) (METRICS.md "Identity")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import blocks
from traceview.normalise.codes import different

NEAR = 1 << 21  # correlation ids between the first and the last of a block, most often

Ids = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Links:
    """API calls by process and correlation id; the first call wins where one repeats."""

    lookups: Mapping[int, _Lookup]

    @classmethod
    def of(cls, api: pl.DataFrame) -> Links:
        """Take the keys of model.API."""
        if api.is_empty():
            return cls({})
        correlation = api["correlation"].to_numpy()
        only = _only_process(api)
        if only is not None:
            return cls({only: _Lookup.of_calls(correlation, None)})
        process = api["process"].to_numpy()
        found = {}
        for one in different(api["process"].cast(pl.Int64)).to_list():
            rows = np.flatnonzero(process == one)
            found[one] = _Lookup.of_calls(correlation[rows], rows)
        return cls(found)

    def rows(self, work: pl.DataFrame) -> pl.Series:
        """Return the row of each one's launch in model.API; null for correlation id 0 and for strangers.

        `work` has the columns process and correlation.
        """
        wanted = work["correlation"].to_numpy()
        only = _only_process(work)
        if only is not None and only in self.lookups:
            found = self.lookups[only].rows(wanted)
        else:
            found = np.full(len(wanted), -1, np.int32)
            for one, lookup in self.lookups.items() if only is None else ():
                asked = np.flatnonzero(work["process"].to_numpy() == one)
                found[asked] = lookup.rows(wanted[asked])
        # 0 is no key: unified-memory copies carry it and belong to nothing.
        missing = (found < 0) | (wanted == 0)
        series = pl.Series("launch", found)
        return series.set(pl.Series(missing), None) if missing.any() else series


def _only_process(frame: pl.DataFrame) -> int | None:
    """Return the process of all rows; None where there are several, or no rows."""
    # Not from the column as an array: one value that stands for all rows would be made as many.
    low, high = frame.select(low=pl.col("process").min(), high=pl.col("process").max()).row(0)
    return low if low == high else None


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Correlation ids of calls, ascending, none twice, and the calls' rows; None where each is its own number."""

    keys: Ids
    of: NDArray[np.int64] | None

    @classmethod
    def of_calls(cls, keys: Ids, rows: NDArray[np.int64] | None) -> _Lookup:
        """Prepare keys of calls, of which there are some; `rows` are theirs, None where each is its own number."""
        if (keys[1:] > keys[:-1]).all():
            return cls(keys, rows)
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        order = order[first]
        return cls(ordered[first], order if rows is None else rows[order])

    def rows(self, wanted: Ids) -> NDArray[np.int32]:
        """Return the row of each key; -1 for strangers."""
        found = np.empty(len(wanted), np.int32)
        room = np.empty(NEAR, np.int32)
        for block in blocks(len(wanted)):
            part = wanted[block]
            low, high = part.min(), part.max()
            # What works at about one time was launched at about one time: a small table holds all that may be.
            if high - low < NEAR:
                first, last = np.searchsorted(self.keys, low), np.searchsorted(self.keys, high, side="right")
                table = room[: int(high - low) + 1]
                table.fill(-1)
                table[self.keys[first:last] - low] = self._rows(slice(first, last))
                found[block] = table[part - low]
            else:
                place = np.minimum(np.searchsorted(self.keys, part), len(self.keys) - 1)
                found[block] = np.where(self.keys[place] == part, self._rows(place), -1)
        return found

    def _rows(self, places: slice | NDArray[np.intp]) -> NDArray[np.integer[Any]]:
        if self.of is not None:
            return self.of[places]
        return np.arange(places.start, places.stop, dtype=np.int32) if isinstance(places, slice) else places
