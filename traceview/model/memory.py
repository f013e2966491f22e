"""Memory in use over time, and the row of its table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

from traceview.frozen import frozen
from traceview.model.columns import column

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

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


@frozen
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
    place_bytes: int = column("bytes", "from there", "Part of the peak that was allocated at this range and line.")
