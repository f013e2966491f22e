"""What a measure is: a function from typed frames to rows, and the table that declares their columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from traceview.measure.activity import Activity
from traceview.measure.gaps.causes import Idle
from traceview.measure.host import Host
from traceview.measure.nvtx.projection import Projection
from traceview.model.analysis import HostUse, NotMeasured
from traceview.model.columns import Table
from traceview.model.trace import Trace


@dataclass(frozen=True, slots=True)
class DeviceInput:
    """What a measure of one device sees."""

    trace: Trace
    activity: Activity  # the device's operations inside the window, sorted, and their unions
    threads: Host  # what each host thread was doing
    idle: Idle  # the device's idle gaps


@dataclass(frozen=True, slots=True)
class CaptureInput:
    """What a measure of the whole capture sees."""

    trace: Trace
    host: HostUse
    projection: Projection  # the NVTX range that each operation belongs to


@dataclass(frozen=True, slots=True)
class DeviceMeasure:
    """A measure that is taken of each device. The rows are of `table.row_type`."""

    table: Table
    rows: Callable[[DeviceInput], tuple[Any, ...]]

    def measured(self, given: DeviceInput) -> Table:
        """Return the table with its rows."""
        return self.table.with_rows(self.rows(given))


@dataclass(frozen=True, slots=True)
class CaptureMeasure:
    """A measure that is taken once, of the whole capture. The rows are of `table.row_type`."""

    table: Table
    rows: Callable[[CaptureInput], tuple[Any, ...] | NotMeasured]

    def measured(self, given: CaptureInput) -> Table:
        """Return the table with its rows, or with the reason why there are none."""
        rows = self.rows(given)
        return self.table.unmeasured(rows.reason) if isinstance(rows, NotMeasured) else self.table.with_rows(rows)
