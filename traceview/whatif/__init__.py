"""What a change would give: a graph of some iterations, changed and replayed (docs/whatif.md)."""

from traceview.whatif.changes import ranks as data_parallel
from traceview.whatif.run import measured, predict, whatif

__all__ = ["data_parallel", "measured", "predict", "whatif"]
