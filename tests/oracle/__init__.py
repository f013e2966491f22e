"""Every figure of docs/definitions.md, computed by slow and simple Python.

Nothing here imports traceview: the reader, the interval algebra and the name lists are independent.
"""

from tests.oracle.figures import figures

__all__ = ["figures"]
