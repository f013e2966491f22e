"""What a change would give: a graph of some iterations, changed and replayed (docs/whatif.md)."""

from traceview.estimate.run import measured, predict, whatif

__all__ = ["measured", "predict", "whatif"]
