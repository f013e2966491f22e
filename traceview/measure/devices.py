"""One DeviceUse for each GPU that worked: busy, overlap, streams, gaps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceview import intervals
from traceview.measure import MEASURES
from traceview.measure.activity import KERNEL, Activity
from traceview.measure.base import DeviceInput, DeviceMeasure
from traceview.measure.gaps.causes import Idle, device_gaps, idle_of
from traceview.measure.host import Host
from traceview.model.analysis import DeviceUse, Gaps
from traceview.model.trace import Trace


def measure_devices(
    trace: Trace, of: Host, activities: Sequence[Activity], idle: Sequence[tuple[Idle, Gaps]] | None = None
) -> tuple[DeviceUse, ...]:
    """Measure devices that did anything in the trace's window; `idle` saves finding the idle time of each again."""
    known = idle_times(trace, of, activities) if idle is None else idle
    return tuple(_measure_device(trace, of, device, *one) for device, one in zip(activities, known, strict=True))


def idle_times(trace: Trace, of: Host, activities: Sequence[Activity]) -> list[tuple[Idle, Gaps]]:
    """Find the gaps of each device and attribute them."""
    found = (idle_of(trace, of, device) for device in activities)
    return [(idle, device_gaps(trace, of, idle)) for idle in found]


def _measure_device(trace: Trace, of: Host, device: Activity, idle: Idle, gaps: Gaps) -> DeviceUse:
    row = trace.devices.row(device.device, named=True)
    source = device.of(trace.operations["source"].to_physical().to_numpy())
    busy = intervals.length(device.busy)
    given = DeviceInput(trace, device, of, idle)
    return DeviceUse(
        device=device.device,
        id=row["id"],
        name=row["name"],
        process_ids=tuple(row["processes"]),
        window=device.window,
        kernel_count=int(np.count_nonzero(source == KERNEL)),
        busy_ns=busy,
        compute_ns=intervals.length(device.compute),
        communication_ns=intervals.length(device.communication),
        idle_ns=device.window.length - busy,
        gaps=gaps,
        tables={one.table.name: one.measured(given) for one in MEASURES if isinstance(one, DeviceMeasure)},
    )
