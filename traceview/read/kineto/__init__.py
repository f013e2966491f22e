"""Chrome traces of torch.profiler (Kineto), converted to the tables that nsys exports.

pieces.py      cuts the text into pieces of complete events, because a trace may be larger than memory,
               reads the JSON of events, and repairs events that are not JSON
events.py      decodes the pieces into frames of integers, each name once
kineto.toml    the names of torch.profiler, and those of nsys for them
perfetto_file.py  turns the packets of a Perfetto trace into events
trace_file.py  the whole conversion to nsys's tables, and the notes on what such a trace does not record
"""

import re
from pathlib import Path

from traceview.read.raw import RawCapture, Wanted

BLANKS = b" \t\r\n\xef\xbb\xbf"
# The first packet that torch writes: its time, the number of its sequence, the clocks. Other programs begin otherwise.
PERFETTO_HEAD = re.compile(rb"\n[\x01-\x7f]\x40[\x80-\xff]{8}[\x00-\x7f]\x50\x01\x32", re.DOTALL)


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


class PerfettoReader:
    """Reads Perfetto traces of torch.profiler (.pftrace). Needs the package perfetto."""

    kind = "torch.profiler Perfetto trace"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether a file with these first bytes is a Perfetto trace of torch."""
        return PERFETTO_HEAD.match(head) is not None

    def read(self, path: Path, _wanted: Wanted | None = None) -> RawCapture:
        """Read a trace. Raises DamagedExportError, NotAnExportError or ReportError."""
        from traceview.read.kineto import perfetto_file

        return perfetto_file.read_pftrace(path)


def with_missing(capture: RawCapture) -> RawCapture:
    """Return a capture made from a trace with notes on what torch.profiler does not record."""
    from traceview.read.kineto import trace_file

    return trace_file.with_missing(capture)
