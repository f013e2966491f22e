"""Every error a user can cause, as one tree.

    TraceviewError            one clear line; the command line exits with 2
      ReportError             the capture cannot be read
        NotFoundError         no such file, or a directory
        NotAnExportError      empty, text, another program's database
        DamagedExportError    truncated, bit-flipped, still being written
        NoGpuWorkError        a good capture that holds nothing to analyse
      RequestError            the question makes no sense for this capture
      OutputError             a result could not be written; nothing half-written is left
"""

from __future__ import annotations

import errno


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there is no memory, also none for another thread or process."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOMEM, errno.EAGAIN)
    if isinstance(error, RuntimeError):
        return "can't start new thread" in str(error)
    # polars starts its threads at first use; its panic is no Exception.
    return isinstance(error, MemoryError) or (
        type(error).__name__ == "PanicException" and "ThreadPoolBuildError" in str(error)
    )


class TraceviewError(Exception):
    """One line that names the file, the reason and the remedy."""

    exit_code = 2


class ReportError(TraceviewError):
    """The capture cannot be read."""


class NotFoundError(ReportError):
    """There is no such file, or it is a directory."""


class NotAnExportError(ReportError):
    """The file is not what Nsight Systems exports."""


class DamagedExportError(ReportError):
    """The file is an export, but a part of it cannot be trusted."""


class NoGpuWorkError(ReportError):
    """The capture is sound, but holds nothing that could be analysed."""


class RequestError(TraceviewError):
    """A window, device, range or expression does not fit this capture."""


class OutputError(TraceviewError):
    """A result could not be written."""
