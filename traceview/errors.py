"""Every error that a user can cause, as one tree.

TraceviewError            one line; the command line exits with 2
  ReportError             the capture cannot be read
    NotFoundError         the file does not exist, or is a folder
    NotAnExportError      empty, text, or a database of another program
    DamagedExportError    truncated, corrupt, or still being written
    NoGpuWorkError        readable, but without GPU work to analyze
  RequestError            the options do not fit this capture
  OutputError             a result cannot be written; nothing of it is kept
"""

from __future__ import annotations

import errno


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is exhausted, also for a new thread or process."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOMEM, errno.EAGAIN)
    if isinstance(error, RuntimeError):
        return "can't start new thread" in str(error)
    # polars starts its threads at first use and panics; PanicException does not derive from Exception.
    return isinstance(error, MemoryError) or (
        type(error).__name__ == "PanicException" and "ThreadPoolBuildError" in str(error)
    )


class TraceviewError(Exception):
    """One line that names the file, the reason and the remedy."""


class ReportError(TraceviewError):
    """The capture cannot be read."""


class NotFoundError(ReportError):
    """The file does not exist, or is a folder."""


class NotAnExportError(ReportError):
    """The file is not an Nsight Systems export."""


class DamagedExportError(ReportError):
    """The file is a corrupt export."""


class NoGpuWorkError(ReportError):
    """The capture is valid, but has no GPU work to analyze."""


class RequestError(TraceviewError):
    """A window, device, range or expression does not fit this capture."""


class OutputError(TraceviewError):
    """A result cannot be written."""
