"""From a file to a Trace."""

from __future__ import annotations

from pathlib import Path

from traceview.memory import give_back
from traceview.model import Trace
from traceview.normalise import normalise
from traceview.read import read_sqlite


def open_trace(path: str | Path) -> Trace:
    """Read and normalise one capture.

    Raises ReportError (NotFoundError, NotAnExportError, DamagedExportError) when it cannot be read.
    """
    trace = normalise(read_sqlite(path))
    give_back()
    return trace
