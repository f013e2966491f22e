"""The scopes of a host thread: the ops and modules of a model, and the Python functions that call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

SCOPE_KINDS = OP, MODULE, FUNCTION = ("op", "module", "function")

SCOPES: Mapping[str, PolarsDataType] = {
    "start": pl.Int64,
    "end": pl.Int64,
    "name": pl.Enum,  # "aten::linear"; "layer1.0.conv1" or "Conv2d_3"; "models/gpt.py:31 forward"
    "thread": pl.Int16,  # row of Trace.threads
    "process": pl.Int32,
    "kind": pl.Enum(SCOPE_KINDS),
    "backward": pl.Boolean,  # a backward function of autograd, or a module's range around its backward
    # A backward op has the number of the forward op that created it; null for an op without gradients.
    "sequence": pl.Int64,
    "forward_thread": pl.Int64,  # PyTorch's number of the thread of a backward op's forward; null if unknown
    "range": pl.Int32,  # row of Trace.ranges; null if it is not a range
}
# Kernels of CUDA graphs whose capture is in the trace.
CAPTURES: Mapping[str, PolarsDataType] = {
    "operation": pl.Int32,  # row of Trace.operations
    "thread": pl.Int16,  # row of Trace.threads that added the kernel to the graph
    "start": pl.Int64,  # when it did
}


def no_scopes() -> pl.DataFrame:
    """Return an empty frame with the schema SCOPES."""
    return pl.DataFrame(schema={name: pl.Enum([]) if kind is pl.Enum else kind for name, kind in SCOPES.items()})
