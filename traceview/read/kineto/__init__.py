"""A Chrome trace of torch.profiler (Kineto), read as the tables that nsys exports.

pieces.py     the text cut into pieces of whole events, so that it may be larger than memory
events.py     a piece as a typed frame; decimals.py: its times, exactly
around.py     what is no event: GPUs, clock
gather.py     all pieces: whole numbers, each name once
identity.py   processes and threads
tables.py     nsys's tables; kernels.py and copies.py: what names say
lacks.py      what such a trace does not record
"""

from traceview.read.kineto.read import PROFILER, is_trace, read_kineto, with_lacks

__all__ = ["PROFILER", "is_trace", "read_kineto", "with_lacks"]
