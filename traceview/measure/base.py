"""The kinds of measure. Each combines a function from typed frames to rows with a table that declares columns.

A PartMeasure runs for the window of each GPU and for its steady part, a DeviceMeasure for its window only, and a
CaptureMeasure once for the capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import polars as pl

from traceview.intervals import Times
from traceview.measure.activity import Activity, ShapeSums
from traceview.measure.gaps import IdleGaps, ThreadStates
from traceview.measure.nvtx import Projection
from traceview.measure.places import Places
from traceview.measure.shared_work import LaunchQueue, measuring_threads
from traceview.model.analysis import DeviceUse, HostUse, Iterations, NotMeasured
from traceview.model.columns import METADATA_KEY, Merge, Table, TableTotals
from traceview.model.rows import SourceLine
from traceview.model.trace import Trace, Window

Input = TypeVar("Input")


class PartContext(NamedTuple):
    """What rows of a PartMeasure need besides its totals. Of merged parts, the trace has its small tables alone."""

    trace: Trace
    device: int  # row of Trace.devices


@dataclass(frozen=True)
class PartInput:
    """The input of a PartMeasure."""

    trace: Trace
    activity: Activity  # the device's operations inside the window or its part, sorted, and their unions
    places: Places  # the place in the program that launches each operation

    @property
    def context(self) -> PartContext:
        """The device and its capture."""
        return PartContext(self.trace, self.activity.device)

    @cached_property
    def kernels(self) -> ShapeSums:
        """The kernels of the window or its part by launch shape, summed once for all measures."""
        return ShapeSums.from_activity(self.trace, self.activity)


@dataclass(frozen=True)
class DeviceInput(PartInput):
    """The input of a DeviceMeasure."""

    threads: ThreadStates  # what each host thread was doing
    idle: IdleGaps  # the device's idle gaps and their causes
    extents: Mapping[int, Window] = field(default_factory=dict)  # first start to last end of each stream, in a part

    @cached_property
    def queue(self) -> LaunchQueue:
        """The launches of the device in the window or its part."""
        return LaunchQueue.from_trace(self.trace, self.activity.device)

    @property
    def whole_window(self) -> Window:
        """The device's window in the capture, also in a part."""
        on_device = self.trace.streams["device"]
        own = [extent for row, extent in self.extents.items() if on_device[row] == self.activity.device]
        if not own:
            return self.activity.window
        return Window(min(extent.start for extent in own), max(extent.end for extent in own))


class HostTime(Protocol):
    """Answers what the host did in idle gaps, given as rows of Gaps.frame."""

    def line_sums(self, gaps: Sequence[pl.DataFrame], /) -> pl.DataFrame:
        """Return the sums that lines_of_sums needs; those of parts of a capture add up. `exact` is a flag."""

    def lines_of_sums(self, sums: pl.DataFrame, /) -> tuple[SourceLine, ...]:
        """Return the source lines of these sums, the most idle time first."""

    def lines_at(self, thread: Times, moments: Times, /) -> list[str]:
        """Return the line of the program where each thread (row of Trace.threads) is at a moment; "" if unknown."""


class CaptureInput(NamedTuple):
    """The input of a CaptureMeasure."""

    trace: Trace
    host: HostUse  # synchronizing calls
    projection: Projection  # the NVTX ranges that each operation belongs to
    devices: tuple[DeviceUse, ...]
    iterations: Iterations | NotMeasured
    flops_per_iteration: int | None = None  # on each GPU, as the user states it
    whole: bool = False  # tables cover the window of each device, not its steady part
    host_time: HostTime | None = None  # what the host did in idle gaps, if the capture has evidence of it
    outer: Window | None = None  # the capture's window, where Trace.window is that of one part of several

    @property
    def context(self) -> CaptureInput:
        """The input itself; without operations and API calls where parts are merged."""
        return self


class UndeclaredMergeError(TypeError):
    """A column of a measure does not declare how its values in two parts of a capture merge."""

    def __init__(self, table: str, column: str) -> None:
        """Name the table and the column."""
        self.reason = f'column {column!r} of {table!r} does not declare how it merges: column(..., merge="sum")'
        super().__init__(self.reason)


@dataclass(frozen=True, slots=True)
class Failed(NotMeasured):
    """The reason why the measure of a package is left out: then all parts of a capture leave it out."""


def merges_of_fields(row_type: type) -> dict[str, Merge | None]:
    """Return how each field of a row type merges. Fields without a column are keys."""
    return {
        name: field.metadata[METADATA_KEY][3] if METADATA_KEY in field.metadata else "key"
        for name, field in row_type.__dataclass_fields__.items()  # type: ignore[attr-defined]
    }


@dataclass(frozen=True, slots=True)
class _Measure(Generic[Input]):
    """A table and the functions that fill it. `rows` returns instances of `table.row_type`, or why there are none.

    Parts of a capture are measured alone, and their rows merge column by column (model/columns.py), in `order`. If
    rows do not merge, because they are cut, or have shares or means, `totals` returns a frame that does: small, with
    the columns of the rows that do merge, and with others, which `merge` names; the rest are keys. `rows` then reads
    the input's `context` and the totals, of a part or merged.

    Raises UndeclaredMergeError for a number in the rows that does not declare how it merges.
    """

    table: Table
    rows: Callable[..., tuple[Any, ...] | NotMeasured]
    totals: Callable[[Input], pl.DataFrame | NotMeasured] | None = None
    merge: Mapping[str, Merge] = field(default_factory=dict)
    order: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        """Refuse columns that cannot merge."""
        if self.totals is None:
            self._check_declared([name for name, merge in self.merges.items() if merge is None])

    @property
    def merges(self) -> dict[str, Merge | None]:
        """How each column of the rows and the totals merges; None for a number that does not declare it."""
        return {**merges_of_fields(self.table.row_type), **self.merge}

    def merge_rules(self, totals: pl.DataFrame) -> dict[str, Merge]:
        """Return how each column of the totals merges. Raises UndeclaredMergeError."""
        merges = {name: self.merges.get(name, "key") for name in totals.columns}
        self._check_declared([name for name, merge in merges.items() if merge is None])
        return {name: merge for name, merge in merges.items() if merge is not None}

    def _check_declared(self, undeclared: Sequence[str]) -> None:
        if undeclared:
            raise UndeclaredMergeError(self.table.name, undeclared[0])

    def fill_table(self, given: Input, totals_only: bool = False) -> Table:
        """Return the table with its rows, or with the reason why there are none; a part needs totals alone."""
        if self.totals is None:
            return self._filled(self.rows(given))
        totals = self.totals(given)
        if isinstance(totals, NotMeasured):
            return self._filled(totals)
        self.merge_rules(totals)
        if totals_only:
            return self.table.with_rows((), TableTotals(totals))
        return self.from_totals(given.context, totals)  # type: ignore[attr-defined]

    def from_totals(self, context: Any, totals: pl.DataFrame) -> Table:
        """Return the table of a measure with `totals`, which may be those of several parts."""
        return self._filled(self.rows(context, totals), TableTotals(totals))

    def from_rows(self, rows: Sequence[Any]) -> Table:
        """Return the table of a measure without `totals`, with the merged rows of several parts."""
        return self._filled(tuple(rows))

    def _filled(self, rows: tuple[Any, ...] | NotMeasured, totals: TableTotals | None = None) -> Table:
        if isinstance(rows, NotMeasured):
            return self.table.unmeasured(rows.reason, failed=isinstance(rows, Failed))
        return self.table.with_rows(tuple(sorted(rows, key=self.order)) if self.order else rows, totals)


class PartMeasure(_Measure[PartInput]):
    """A measure of each device's window and steady part. `rows` reads a PartInput."""


class DeviceMeasure(_Measure[DeviceInput]):
    """A measure of each device's window. `rows` reads a DeviceInput."""


class CaptureMeasure(_Measure[CaptureInput]):
    """A measure of the capture. `rows` reads a CaptureInput."""


Measure: TypeAlias = "PartMeasure | DeviceMeasure | CaptureMeasure"


def fill_tables(measures: Iterable[Measure], given: Any, *kinds: type, totals_only: bool = False) -> dict[str, Table]:
    """Return the filled tables of the measures of these kinds, by name (see fill_table)."""
    chosen = [measure for measure in measures if isinstance(measure, kinds)]
    with measuring_threads(len(given.trace.operations)) as pool:
        return {table.name: table for table in pool.map(lambda measure: measure.fill_table(given, totals_only), chosen)}
