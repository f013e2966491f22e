"""From a file to a Trace."""

from __future__ import annotations

from pathlib import Path

from traceview.model import Trace
from traceview.normalise import normalise
from traceview.read import read_capture


def open_trace(path: str | Path) -> Trace:
    """Read and normalise one capture: an .sqlite, also packed, a .nsys-rep, or a parquetdir or arrowdir.

    Raises ReportError (NotFoundError,
    NotAnExportError, DamagedExportError) when it cannot be read.
    """
    return normalise(read_capture(path))
