"""Means of a GPU's hardware counters by what the GPU does, and their curves for the timeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Intervals
from traceview.measure.activity import Activity
from traceview.measure.base import DeviceInput, Measure
from traceview.measure.kernels.families import shape_kinds
from traceview.model.columns import Table
from traceview.model.sizes import CLOCKS, METRICS, SHARES, CounterSeries, MetricMeans
from traceview.model.trace import Trace, enum_texts

FILLED = 0.9  # share of a sample that work must fill for the sample to count for it
DIGITS = 4
PERCENT = 100
KNOWN = "_known"
_METRIC_SUMS = (
    pl.len().cast(pl.Int64).alias("count"),
    pl.col(METRICS).cast(pl.Int64).sum(),
    pl.col(METRICS).count().cast(pl.Int64).name.suffix(KNOWN),
)
SHOWN = (
    *("part", "count", "sm_active", "sm_issue", "tensor_active", "warps", "dram_read", "dram_write"),
    *("pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx", "gpc_clock_mhz"),
)


def metric_curves(trace: Trace) -> Iterator[CounterSeries]:
    """Yield each metric of each device over time, without those that are 0 all the time."""
    for (device,), samples in trace.gpu_metrics.group_by("device", maintain_order=True):
        start = samples["start"].to_numpy()
        for unit, names in (("%", SHARES), ("MHz", CLOCKS)):
            for metric, name in names.items():
                if samples[metric].max():
                    value = samples[metric].fill_null(0).to_numpy()
                    yield CounterSeries(name, unit, start, value, int(str(device)))


def metric_means(given: DeviceInput) -> tuple[MetricMeans, ...]:
    """Return the means of all the time, and of what the device does in it, where samples show that alone."""
    samples = given.trace.gpu_metrics.filter(pl.col("device") == given.activity.device)
    if samples.is_empty():
        return ()
    start, end = (samples[name].to_numpy() for name in ("start", "end"))
    rows = []
    for name, members in _work_by_part(given.trace, given.activity):
        counted = intervals.covered_length(members, start, end) >= FILLED * (end - start)
        if counted.any():
            [sums] = samples.filter(pl.Series(counted)).select(*_METRIC_SUMS).to_dicts()
            rows.append(MetricMeans(part=name, **_means(sums)))
    return tuple(rows)


def _work_by_part(trace: Trace, work: Activity) -> Iterator[tuple[str, Intervals]]:
    """Yield the times of a device by what it does, with names: all, kernels by family, communication, copies, idle."""
    window = work.window
    everything = Intervals(*(np.array([moment], np.int64) for moment in (window.start, window.end)))
    yield "all the time", everything
    yield "compute", work.compute
    shape, family = work.select(trace.operations["shape"].to_numpy()), shape_kinds(trace.shapes)["family"]
    kernels = np.flatnonzero(shape)
    for code, members in intervals.rows_by_code(family.to_physical().to_numpy()[shape[kernels]]):
        rows = kernels[members]
        yield f"{enum_texts(family)[code]} kernels", intervals.union(work.start[rows], work.end[rows], ordered=True)
    both = intervals.union(*(np.concatenate(times) for times in zip(work.compute, work.communication, strict=True)))
    yield "communication alone", intervals.subtract(work.communication, work.compute)
    yield "copies alone", intervals.subtract(work.busy, both)
    yield "idle", intervals.complement(work.busy, window.start, window.end)


def _means(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of samples and the mean of each metric, shares as fractions."""
    means = {name: sums[name] / sums[name + KNOWN] for name in METRICS if sums[name + KNOWN]}
    shares = {name: round(means[name] / PERCENT, DIGITS) if name in means else None for name in SHARES}
    clocks = {name: round(means[name]) if name in means else None for name in CLOCKS}
    return {"count": sums["count"], **shares, **clocks}


GPU_METRICS = Measure(
    Table(
        name="gpu_metrics",
        title="GPU metrics",
        row_type=MetricMeans,
        note="Means of hardware counters of the GPU, which include the work of other programs.",
        shown=SHOWN,
    ),
    metric_means,
)
