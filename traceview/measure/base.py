"""What a measure is: a function from typed frames to rows, with a table that declares their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import polars as pl

from traceview.intervals import Times
from traceview.measure.activity import Activity, ShapeSums
from traceview.measure.exposure import ExposedTime
from traceview.measure.gaps import ThreadStates, device_gaps
from traceview.measure.nvtx import Projection
from traceview.measure.places import Places
from traceview.measure.shared_work import LaunchQueue, measuring_threads
from traceview.model.analysis import DeviceUse, Gaps, HostUse, Iterations, NotMeasured
from traceview.model.columns import Table
from traceview.model.frozen import dataclass
from traceview.model.rows import SourceLine
from traceview.model.trace import Trace

Scope = Literal["steady", "window", "capture"]


@dataclass(frozen=True)
class DeviceInput:
    """The input of a measure of a GPU."""

    trace: Trace
    activity: Activity  # the GPU's operations inside its window or its steady part, sorted, and their unions
    places: Places  # the place in the program that launches each operation
    threads: ThreadStates  # what each host thread was doing
    exposed: ExposedTime  # stretches in which copies, memsets and communication run alone

    @cached_property
    def kernels(self) -> ShapeSums:
        """The kernels by launch shape, summed once for all measures."""
        return ShapeSums.from_activity(self.trace, self.activity)

    @cached_property
    def gaps(self) -> Gaps:
        """The idle gaps of the GPU and their causes."""
        return device_gaps(self.trace, self.threads, self.activity)

    @cached_property
    def queue(self) -> LaunchQueue:
        """The launches of the GPU in the window."""
        return LaunchQueue.from_trace(self.trace, self.activity.device)


class HostTime(Protocol):
    """Answers what the host did in idle gaps, given as rows of Gaps.frame."""

    def lines(self, gaps: Sequence[pl.DataFrame], /) -> tuple[SourceLine, ...]:
        """Return the source lines in the gaps of some devices, the most idle time first."""

    def lines_at(self, thread: Times, moments: Times, /) -> list[str]:
        """Return the line of the program where each thread (row of Trace.threads) is at a moment; "" if unknown."""


class CaptureInput(NamedTuple):
    """The input of a measure of the capture."""

    trace: Trace
    host: HostUse  # synchronizing calls
    projection: Projection  # the NVTX ranges that each operation belongs to
    devices: tuple[DeviceUse, ...]
    iterations: Iterations | NotMeasured
    flops_per_iteration: int | None = None  # on each GPU, as the user states it
    whole: bool = False  # tables cover the window of each device, not its steady part
    host_time: HostTime | None = None  # what the host did in idle gaps, if the capture has evidence of it


@dataclass(frozen=True, slots=True)
class Measure:
    """A table, and the function that returns its rows in their order, or why there are none.

    A measure with the scope "steady" runs for each GPU in its window and again in its steady part, one with "window" in
    the window alone; `rows` reads a DeviceInput. One with "capture" runs once; `rows` reads a CaptureInput.
    """

    table: Table
    rows: Callable[[Any], tuple[Any, ...] | NotMeasured]
    scope: Scope = "steady"

    def fill_table(self, given: Any) -> Table:
        """Return the table with its rows, or with the reason why there are none."""
        rows = self.rows(given)
        return self.table.unmeasured(rows.reason) if isinstance(rows, NotMeasured) else self.table.with_rows(rows)


def fill_tables(measures: Iterable[Measure], given: DeviceInput | CaptureInput, *scopes: Scope) -> dict[str, Table]:
    """Return the filled tables of the measures with these scopes, by name."""
    chosen = [measure for measure in measures if measure.scope in scopes]
    with measuring_threads(len(given.trace.operations)) as pool:
        return {table.name: table for table in pool.map(lambda measure: measure.fill_table(given), chosen)}
