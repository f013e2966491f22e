"""A Chrome trace of torch.profiler (Kineto), read as the tables that nsys exports.

pieces.py     the text cut into pieces of whole events, so that it may be larger than memory
events.py     a piece as a typed frame; decimals.py: its times, exactly
around.py     what is no event: GPUs, clock
gather.py     all pieces: whole numbers, each name once
identity.py   processes and threads
tables.py     nsys's tables; kernels.py and copies.py: what names say
lacks.py      what such a trace does not record
"""

from pathlib import Path

from traceview.read.kineto.known import PROFILER, is_trace
from traceview.read.raw import RawCapture

__all__ = ["PROFILER", "is_trace", "read_kineto", "with_lacks"]


# Most captures are none of these, and what reads them is imported for those alone that are.
def read_kineto(path: Path) -> RawCapture:
    """Read a trace (see trace_file.py)."""
    from traceview.read.kineto import trace_file

    return trace_file.read_kineto(path)


def with_lacks(capture: RawCapture) -> RawCapture:
    """Return tables that a trace was made into as torch.profiler's capture, with what it lacks."""
    from traceview.read.kineto import trace_file

    return trace_file.with_lacks(capture)
