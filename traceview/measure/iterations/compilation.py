"""Iterations in which the host mostly compiles or loads code: that occurs once, and belongs to no loop."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.trace import Trace, names_match

LOADS_CODE = (
    r"^(?:cu|hip)(?:Link|Module|Library)(?:Create|Add(?:Data|File)|Complete|Load(?:Data|FatBinary)?)|^nvrtcCompile"
)
MOST = 0.5  # share of an iteration


def compiling_iterations(trace: Trace, process: int, start: Times, end: Times) -> NDArray[np.bool_]:
    """Return which iterations of a process spend most of their time on code, and are as much longer than the median.

    This is the time of the calls that load code and of the pauses before them, in which the host makes it.
    """
    calls = trace.api.filter(pl.col("process") == process)
    loads = np.flatnonzero(names_match(calls["name"], LOADS_CODE))
    begin, until = (calls[name].to_numpy() for name in ("start", "end"))
    number = np.searchsorted(start, begin[loads], side="right") - 1
    loads, number = loads[number >= 0], number[number >= 0]
    before = np.maximum.accumulate(np.append(begin[:1], until))[loads]
    ns = np.zeros(len(start), np.int64)
    np.add.at(ns, number, until[loads] - np.minimum(np.maximum(before, start[number]), begin[loads]))
    wall = end - start
    compiles: NDArray[np.bool_] = np.minimum(ns, wall - np.median(wall)) > MOST * wall
    return compiles
