"""Storms: loops that launch the same few tiny operations over and over.

An operation is tiny if it takes less time than its launch. Kernels of layers never count, however short they are:
matrix products, convolutions, attention, and kernels that are already fused. A deep model of small layers is not a
storm. Findings and predictions share these definitions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Intervals, Times, runs, union
from traceview.measure.kernels.families import MATRIX, shape_kinds
from traceview.measure.shared_work import once_per_frame

MAX_TINY = 10_000  # ns
MIN_STORM = 100  # operations
PERIODS = (1, 2, 3, 4)
RECURRENT = r"(?:^|[^A-Za-z])(?i:lstm|rnn|gru)|LSTM|RNN|GRU"  # kernels of whole recurrent layers
# Kernels that compute matrix products, convolutions, attention or the like, and those that are fused, by their kind.
IS_MATRIX = pl.col("family").is_in((*MATRIX, "fft")) | pl.col("label").str.contains(RECURRENT)
IS_FUSED = pl.col("family").is_in(("fused", "optimizer"))
Mask = NDArray[np.bool_]


def tiny_operations(start: Times, end: Times, shape: NDArray[Any], shapes: pl.DataFrame) -> Mask:
    """Return which operations are tiny and can belong to a storm; `shape` is the row of each in Trace.shapes."""
    tiny: Mask = end - start <= MAX_TINY
    layers = _layers(shapes)
    return tiny & ~layers[shape] if layers.any() else tiny


@once_per_frame
def _layers(shapes: pl.DataFrame) -> Mask:
    """Return the launch shapes that never belong to a storm."""
    layers: Mask = shape_kinds(shapes).select(IS_MATRIX | IS_FUSED).to_series().to_numpy()
    return layers


def storms(name: NDArray[Any], tiny: Mask, min_length: int = MIN_STORM) -> Intervals:
    """Return the storms among the operations of a stream, as ranges of positions."""
    begin, end = map(np.concatenate, zip(*(runs(repeats(name, period) & tiny) for period in PERIODS), strict=True))
    long = end - begin >= min_length
    return union(begin[long], end[long])


def repeats(name: NDArray[Any], period: int) -> Mask:
    """Return which operations have the same name as the operation `period` positions earlier."""
    same = np.zeros(len(name), np.bool_)
    np.equal(name[period:], name[:-period], out=same[period:])
    return same
