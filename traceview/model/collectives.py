"""Collectives of many ranks in few bytes: a fleet of 1,000 ranks holds millions of them at once.

Times are whole ns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times

SECOND = 10**9
NARROW: tuple[np.dtype[Any], ...] = (np.dtype("int8"), np.dtype("int16"), np.dtype("int32"))
WIDE_BYTES = 16  # the place and the value of a difference that does not fit
# The order of a rank's collectives, which is the same on most ranks of a program.
ORDER_COLUMNS = ("step", "kind", "channel")
# "length" is end minus start, which needs fewer bytes than the end.
COLLECTIVE_COLUMNS = (*ORDER_COLUMNS, "start", "length", "hidden")


@dataclass(frozen=True, slots=True)
class PackedColumn:
    """int64 values as the differences from one to the next, in the type that needs the fewest bytes.

    `steps` has a difference for each value, the first from `first`. Those that do not fit are 0 there and in `wide`, at
    the places `wide_at`. Equal values have equal columns.
    """

    first: int
    steps: NDArray[np.signedinteger]
    wide_at: Times
    wide: Times

    @classmethod
    def pack(cls, values: Times) -> PackedColumn:
        """Return the column of these values. A difference beyond int64 wraps, and wraps back when it is added."""
        first = int(values[0]) if len(values) else 0
        steps = np.zeros(len(values), np.int64)
        np.subtract(values[1:], values[:-1], out=steps[1:])
        best: np.dtype[Any]
        best, wide_at = np.dtype("int64"), np.empty(0, np.int64)
        for kind in NARROW:
            outside = np.flatnonzero(steps != steps.astype(kind))
            if len(steps) * kind.itemsize + len(outside) * WIDE_BYTES < _bytes(len(steps), best, wide_at):
                best, wide_at = kind, outside.astype(np.int64)
            if len(outside) == 0:
                break
        wide = steps[wide_at]
        steps[wide_at] = 0
        return cls(first, steps.astype(best), wide_at, wide)

    def values(self) -> Times:
        """Return the values."""
        steps = self.steps.astype(np.int64)
        steps[self.wide_at] = self.wide
        steps[:1] += self.first
        return np.cumsum(steps, out=steps)

    def key(self) -> tuple[int, bytes, bytes, bytes]:
        """Return what only columns of the same values have in common."""
        return self.first, self.steps.tobytes(), self.wide_at.tobytes(), self.wide.tobytes()

    def __len__(self) -> int:
        return len(self.steps)


def _bytes(count: int, kind: np.dtype[Any], wide_at: Times) -> int:
    return count * kind.itemsize + len(wide_at) * WIDE_BYTES


@dataclass(frozen=True, slots=True)
class Channel:
    """A sequence of a rank's collectives: a communicator if the capture names it, else a stream."""

    communicator: str | None
    stream: int


@dataclass(frozen=True, slots=True)
class Collectives:
    """A rank's communication kernels in launch order; `columns` has one for each of COLLECTIVE_COLUMNS.

    Where only the order of the collectives is known, `columns` has one for each of ORDER_COLUMNS.
    `hidden` is the ns in which compute runs on the same GPU, and `step` the number of the iteration that launched the
    collective, or BEFORE_ALL. `kind` is an index into `kinds`, `channel` into `channels`.
    """

    kinds: tuple[str, ...]
    channels: tuple[Channel, ...]
    columns: tuple[PackedColumn, ...]
    left_out: int  # collectives of the report that exceed the limit

    @classmethod
    def pack(
        cls, kinds: tuple[str, ...], channels: tuple[Channel, ...], left_out: int, *, end: Times, **columns: Times
    ) -> Collectives:
        """Return the collectives with these columns, where `end` replaces "length"."""
        columns["length"] = end - columns["start"]
        return cls(kinds, channels, tuple(PackedColumn.pack(columns[name]) for name in COLLECTIVE_COLUMNS), left_out)

    def column(self, name: str) -> Times:
        """Return one of COLLECTIVE_COLUMNS."""
        return self.columns[COLLECTIVE_COLUMNS.index(name)].values()

    def with_step(self, step: Times) -> Collectives:
        """Return the collectives with other iterations."""
        return replace(self, columns=(PackedColumn.pack(step), *self.columns[1:]))

    def times(self, places: PackedColumn, clock: Clock | None = None) -> tuple[Times, Times]:
        """Return the starts and ends of the collectives at `places`, on their own clock or on the common one."""
        at = places.values()
        start = self.column("start")[at]
        end = start + self.column("length")[at]
        return (start, end) if clock is None else (clock.to_common(start), clock.to_common(end))

    def hidden(self, places: PackedColumn) -> Times:
        """Return the ns of the collectives at `places` during which compute runs."""
        return self.column("hidden")[places.values()]

    def __len__(self) -> int:
        return len(self.columns[0])


@dataclass(frozen=True, slots=True)
class Clock:
    """One report's clock relative to the clock of the first report of its component.

    Subtract `offset` from its times, and `drift` more for each second after `origin`, in ns. `scatter` is the median
    absolute deviation over `count` collectives. `uncertainty` bounds the error of the offset, because no collective
    ends on one rank before all have begun it. `method` is "reference", "collectives", "session start" or "unknown".
    """

    file: str
    method: str
    offset: int
    drift: int
    uncertainty: int | None
    count: int
    session: int | None  # the offset according to the start times of the sessions
    scatter: int = 0
    origin: int = 0

    def to_common(self, times: Times) -> Times:
        """Return times of the report on the common clock."""
        moved: Times = times - self.offset - (times - self.origin) * self.drift // SECOND
        return moved


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """Collectives that several ranks ran together, on the common clock; `left_out` counts those that are not here.

    `ranks` are rows of Fleet.ranks; `start` and `length` have a column for each of them, with a value for each
    collective. `kind` has a name for each collective. `first` is the first arrival at any, also at those left out.
    """

    ranks: Times
    kind: tuple[str, ...]
    start: tuple[PackedColumn, ...]
    length: tuple[PackedColumn, ...]
    first: int
    left_out: int = 0

    def times(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the starts and the ends, with a row for each rank."""
        start, length = (np.stack([column.values() for column in columns]) for columns in (self.start, self.length))
        return start, start + length
