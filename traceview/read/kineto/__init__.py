"""Chrome traces of torch.profiler (Kineto), converted to the tables that nsys exports.

pieces.py      cuts the text into pieces of complete events, because a trace may be larger than memory,
               reads the JSON of events, and repairs events that are not JSON
events.py      decodes the pieces into frames of integers, each name once
kineto.toml    the names of torch.profiler, and those of nsys for them
trace_file.py  the whole conversion to nsys's tables, and the notes on what such a trace does not record
"""

from pathlib import Path

from traceview.read.raw import RawCapture, Wanted

BLANKS = b" \t\r\n\xef\xbb\xbf"


class KinetoReader:
    """Reads JSON traces of torch.profiler."""

    kind = "torch.profiler trace"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether a file with these first bytes may be a JSON document."""
        return head.lstrip(BLANKS).startswith((b"{", b"["))

    def read(self, path: Path, _wanted: Wanted | None = None) -> RawCapture:
        """Read a trace. Raises DamagedExportError, NotAnExportError or ReportError."""
        # Most captures are exports of nsys: import this reader's modules only for a trace.
        from traceview.read.kineto import trace_file

        return trace_file.read_trace(path)


def with_missing(capture: RawCapture) -> RawCapture:
    """Return a capture made from a trace with notes on what torch.profiler does not record."""
    from traceview.read.kineto import trace_file

    return trace_file.with_missing(capture)
