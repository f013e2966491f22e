"""Predict the gain of a change: build a graph of some iterations, change it and replay it (docs/whatif.md)."""

from traceview.whatif.changes import ranks as data_parallel
from traceview.whatif.prediction import measured, predict, whatif

__all__ = ["data_parallel", "measured", "predict", "whatif"]
