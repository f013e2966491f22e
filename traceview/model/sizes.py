"""The amount of work of operations, where the capture states it: floating-point operations, messages of collectives.

`WorkSizes.calls` are the host's calls of NCCL with known communicators, ascending by start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

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
