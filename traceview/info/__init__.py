"""`traceview info`: what a capture contains, what it lacks and whether it can be trusted."""

from traceview.info.contents import CaptureContents, UsedStream, describe
from traceview.info.lines import brief_lines, lines

__all__ = ["CaptureContents", "UsedStream", "brief_lines", "describe", "lines"]
