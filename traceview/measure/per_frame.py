"""Results that follow from one frame, kept as long as the frame exists.

The parts of a capture share the frame of NVTX ranges: what follows from it alone is computed once in each process.
Most measures need the launches of operations.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import polars as pl

from traceview.intervals import Rows

Result = TypeVar("Result")


def once_per_frame(function: Callable[[pl.DataFrame], Result]) -> Callable[[pl.DataFrame], Result]:
    """Return the function with its results kept by frame. A result must not hold its frame or change."""
    kept: dict[int, tuple[weakref.ref[pl.DataFrame], Result]] = {}

    @wraps(function)
    def result_of(frame: pl.DataFrame) -> Result:
        key = id(frame)
        known = kept.get(key)
        if known is not None and known[0]() is frame:
            return known[1]
        result = function(frame)
        kept[key] = (weakref.ref(frame, lambda _: kept.pop(key, None)), result)
        return result

    return result_of


@once_per_frame
def launch_rows(operations: pl.DataFrame) -> Rows:
    """Return the row of Trace.api of the call that launched each operation, -1 for none. Do not change the result."""
    launch = operations["launch"]
    return (launch.fill_null(-1) if launch.null_count() else launch).to_numpy()
