"""What charts show and no other report needs: measured when a page is made, not with every analysis."""

from __future__ import annotations

from collections.abc import Sequence

from traceview.measure.charts.concurrency import streams_at_once
from traceview.measure.charts.copy_sizes import copy_groups
from traceview.measure.gaps.lengths import gap_lengths
from traceview.measure.iterations.bars import iteration_bars
from traceview.model.analysis import DeviceUse, Iterations, NotMeasured
from traceview.model.charts import Charts, DeviceCharts
from traceview.model.trace import Trace


def measure_charts(trace: Trace, devices: Sequence[DeviceUse], iterations: Iterations | NotMeasured) -> Charts:
    """Measure what the charts of every device and of the iterations show."""
    return Charts(
        devices=tuple(_device(trace, device) for device in devices),
        iterations=() if isinstance(iterations, NotMeasured) else iteration_bars(iterations.per_iteration),
    )


def _device(trace: Trace, device: DeviceUse) -> DeviceCharts:
    copies, left_out = copy_groups(trace, device)
    return DeviceCharts(
        device=device.device,
        streams=streams_at_once(trace, device),
        gaps=gap_lengths(device),
        copies=copies,
        copies_left_out=left_out,
    )
