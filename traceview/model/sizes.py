"""Amounts that a capture states: the work of operations, memory in use, and samples of hardware counters.

`WorkSizes.calls` are the host's calls of NCCL with known communicators, ascending by start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.columns import column
from traceview.model.frozen import dataclass

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

COLLECTIVES = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"),
    *("send", "receive", "send_receive", "barrier", "other"),
)
FLOPS: Mapping[str, PolarsDataType] = {
    "operation": pl.Int32,  # row of Trace.operations: a kernel that a call of an op launches
    "call": pl.Int32,  # numbers the calls of ops
    "flops": pl.Int64,  # operations of the whole call
    "op": pl.String,
    "shape": pl.String,  # the sizes and types of what the op multiplies, "" if unknown
    "bytes": pl.Int64,  # that the call reads and writes at least, or null
}
MARKS: Mapping[str, PolarsDataType] = {
    "time": pl.Int64,
    "process": pl.Int32,
    "flops": pl.Int64,  # operations of an iteration on each GPU
}
CALLS: Mapping[str, PolarsDataType] = {
    "start": pl.Int64,
    "thread": pl.Int64,  # row of Trace.threads
    "name": pl.String,
    "communicator": pl.String,  # its id, in hexadecimal digits
    "bytes": pl.Int64,  # null if the call has no message
}
MESSAGES: Mapping[str, PolarsDataType] = {
    "operation": pl.Int32,  # row of Trace.operations
    "collective": pl.Enum(COLLECTIVES),
    "group": pl.String,  # the name of its process group or communicator; null if unknown
    "group_size": pl.Int32,  # null if unknown
    "element_type": pl.String,  # null if unknown
    "bytes": pl.Int64,  # the size of its message as nccl-tests define it (docs/definitions.md "Collectives")
}


SIZES: Mapping[str, Mapping[str, PolarsDataType]] = {
    "flops": FLOPS,
    "marks": MARKS,
    "calls": CALLS,
    "messages": MESSAGES,
}


def empty_frame(schema: Mapping[str, PolarsDataType]) -> pl.DataFrame:
    """Return a frame without rows. A column of the type pl.Enum, which stands for any categories, has none."""
    return pl.DataFrame(schema={name: pl.Enum([]) if kind is pl.Enum else kind for name, kind in schema.items()})


@dataclass(frozen=True, slots=True)
class WorkSizes:
    """The sizes of work that a capture states; each frame is empty if it states none."""

    flops: pl.DataFrame = field(default_factory=lambda: empty_frame(FLOPS))
    marks: pl.DataFrame = field(default_factory=lambda: empty_frame(MARKS))
    calls: pl.DataFrame = field(default_factory=lambda: empty_frame(CALLS))
    messages: pl.DataFrame = field(default_factory=lambda: empty_frame(MESSAGES))


MAX_STEPS = 4096  # steps of a row; the page holds the rows of counters whole
# "device" to "static" is what the program allocates from CUDA, "tensors" what PyTorch's allocator gives to tensors.
MEMORY_KINDS = ("device", "managed", "array", "static", "tensors", "pinned")
MEMORY: Mapping[str, PolarsDataType] = {  # by start
    "start": pl.Int64,
    "device": pl.Int16,  # row of Trace.devices
    "kind": pl.Enum(MEMORY_KINDS),
    "address": pl.Int64,  # null if unknown
    "bytes": pl.Int64,  # what the address holds from now on; 0 after a free
    "total": pl.Int64,  # memory of this device and kind in use from now on
    "thread": pl.Int16,  # row of Trace.threads; null if unknown
}
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


class CounterSeries(NamedTuple):
    """A quantity over time. `value[i]` holds from `start[i]` (ns on the capture's clock, ascending) to the next start.

    `unit` is "bytes", "%", "W", "" or another short word. `device` is a row of Trace.devices; None is the machine.
    """

    name: str
    unit: str
    start: Times
    value: NDArray[np.integer | np.floating]
    device: int | None = None


class CounterSteps(NamedTuple):
    """A counter from `start` to `end` (ns): its time-weighted mean, lowest and highest value in each step."""

    start: Times
    end: Times
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def counter_steps(counter: CounterSeries, first: int, last: int) -> CounterSteps:
    """Return a counter inside [first, last) in at most MAX_STEPS steps, which are its own if they are few enough."""
    start, value = counter.start, np.asarray(counter.value, np.float64)
    end = np.append(start[1:], last)
    kept = np.flatnonzero(np.minimum(end, last) > np.maximum(start, first))
    start, end, value = np.maximum(start[kept], first), np.minimum(end[kept], last), value[kept]
    if len(start) <= MAX_STEPS:
        return CounterSteps(start, end, value, value, value)
    edges = np.linspace(int(start[0]), last, MAX_STEPS + 1).astype(np.int64)
    area = np.append(0.0, np.cumsum(value * (end - start)))
    at = np.searchsorted(start, edges, "right") - 1
    before = area[at] + value[at] * (edges - start[at])
    # The value at the start of a bin counts as well: insert it as a step of its own.
    cuts = np.unique(np.concatenate([start, edges[:-1]]))
    values = value[np.searchsorted(start, cuts, "right") - 1]
    places = np.searchsorted(cuts, edges[:-1])
    mean = np.diff(before) / np.diff(edges)
    return CounterSteps(
        edges[:-1], edges[1:], mean, np.minimum.reduceat(values, places), np.maximum.reduceat(values, places)
    )


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of one kind on a device, and what held most of it at its peak (docs/definitions.md "Memory")."""

    device: str = column("text", "GPU", "The GPU; of pinned memory, that of the context that allocated it.")
    kind: str = column(
        "text", "kind", "device, managed, array, static or pinned memory of CUDA, or tensors of PyTorch's allocator."
    )
    peak_bytes: int = column("bytes", "peak", "Most memory in use at a time.")
    peak_ns: int = column("ns", "peak at", "Time of the first peak, after the first GPU work; negative before it.")
    end_bytes: int = column("bytes", "at the end", "Memory in use at the end.")
    count: int = column("count", "allocations", "Number of allocations.")
    allocated_bytes: int = column("bytes", "allocated", "Sum of the allocations.")
    range: str = column("text", "range", "NVTX range in which most of the peak was allocated; numbers in names are #.")
    place: str = column("text", "line", "Line of the program in that range that allocated most of it.")
    place_bytes: int = column("bytes", "from there", "Bytes of the peak that were allocated at this range and line.")


@dataclass(frozen=True, slots=True)
class MetricMeans:
    """Means over the samples that one kind of work fills. A metric that the capture does not have is None."""

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
