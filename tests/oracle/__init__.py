"""Every figure of METRICS.md, computed slowly and obviously: plain Python, one loop a sentence.

Nothing here comes from traceview: not its reader, not its interval algebra, not its name lists. Points that
METRICS.md leaves open are read as docs/decisions.md says.
"""

from tests.oracle.figures import figures

__all__ = ["figures"]
