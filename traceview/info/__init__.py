"""`traceview info`: what a capture holds and lacks, within a second."""

from traceview.info.contents import Contents, StreamFound, describe
from traceview.info.lines import lines

__all__ = ["Contents", "StreamFound", "describe", "lines"]
