"""From a file to raw tables; one module a format. What versions changed is settled in normalise."""

from traceview.read.formats import read_capture
from traceview.read.raw import RawCapture
from traceview.read.sqlite import read_sqlite

__all__ = ["RawCapture", "read_capture", "read_sqlite"]
