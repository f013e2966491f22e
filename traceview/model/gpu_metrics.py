"""Samples of a GPU's hardware counters, and the rows of their tables (docs/definitions.md "GPU metrics")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

from traceview.frozen import frozen
from traceview.model.columns import column, derived

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

# A metric's column in GPU_METRICS, and its name on the timeline. Shares are in percent, clocks in MHz.
SHARES: Mapping[str, str] = {
    "sm_active": "SMs active",
    "sm_issue": "SM issue",
    "tensor_active": "tensor cores active",
    "warps": "warps in flight",
    "dram_read": "DRAM read",
    "dram_write": "DRAM write",
    "pcie_rx": "PCIe received",
    "pcie_tx": "PCIe sent",
    "nvlink_rx": "NVLink received",
    "nvlink_tx": "NVLink sent",
}
CLOCKS: Mapping[str, str] = {"gpc_clock_mhz": "GPC clock", "sys_clock_mhz": "SYS clock"}
METRICS = (*SHARES, *CLOCKS)
GPU_METRICS: Mapping[str, PolarsDataType] = {  # by device and start
    "device": pl.Int16,  # row of Trace.devices
    "start": pl.Int64,
    "end": pl.Int64,  # the next sample's start, unless samples are missing
    **dict.fromkeys(METRICS, pl.Int16),  # null if the capture does not have it
}


@frozen
class MetricMeans:
    """Means over the samples that a part of the time fills. A metric that the capture does not have is None."""

    part: str = column("text", "while", "What fills at least 90% of each counted sample.")
    count: int = column("count", "samples", "Number of counted samples.")
    sm_active: float | None = column("fraction", "SM active", "Cycles in which an SM has a warp, over all SMs.")
    sm_issue: float | None = column("fraction", "SM issue", "Cycles in which a warp scheduler issues an instruction.")
    tensor_active: float | None = column("fraction", "tensor", "Cycles in which the tensor pipes are active.")
    warps: float | None = column("fraction", "warps", "Compute warps on the SMs, over the most that fit.")
    dram_read: float | None = column("fraction", "DRAM read", "Cycles in which the memory interface reads.")
    dram_write: float | None = column("fraction", "write", "Cycles in which the memory interface writes.")
    pcie_rx: float | None = column("fraction", "PCIe rx", "Bytes received over PCIe, protocol included, over its peak.")
    pcie_tx: float | None = column("fraction", "tx", "Bytes sent over PCIe, protocol included, over its peak.")
    nvlink_rx: float | None = column("fraction", "NVLink rx", "Bytes received over NVLink, protocol included, of peak.")
    nvlink_tx: float | None = column("fraction", "tx", "Bytes sent over NVLink, protocol included, of peak.")
    gpc_clock_mhz: int | None = column("count", "GPC MHz", "Clock of the SMs.")
    sys_clock_mhz: int | None = column("count", "SYS MHz", "Clock of the front end and the copy engines.")


@frozen
class IterationMetrics(MetricMeans):
    """The means of one counted iteration on one device."""

    device: str = column("text", "GPU", "The GPU.")
    iteration: int = column("id", "index", "The iteration's index in iterations.per_iteration.")

    @derived("text", "iteration", "The iteration and its GPU.")
    def label(self) -> str:
        """The iteration and its GPU."""
        return f"{self.part}, {self.device}"
