"""`traceview info`: what a capture contains and what it lacks, within a second."""

from traceview.info.contents import CaptureContents, UsedStream, describe, lines

__all__ = ["CaptureContents", "UsedStream", "describe", "lines"]
