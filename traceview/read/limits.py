"""Limits on the decoded size of a capture: a few kilobytes can describe many gigabytes."""

from __future__ import annotations

from contextvars import ContextVar

from traceview.errors import NotAnExportError, ReportError

MAX_TEXT = 64 << 20  # bytes of one text or event; kernel names have thousands
MAX_NAME = 1 << 15  # characters kept of a name; demangled template names have more than 10,000
MAX_NAME_BYTES = 4 * (MAX_NAME + 1)  # UTF-8 takes at most 4 bytes per character
DEFAULT_MAX_DECODED = 4_000_000_000

# The value of --max-decoded for the current command, in bytes.
MAX_DECODED: ContextVar[int] = ContextVar("max_decoded", default=DEFAULT_MAX_DECODED)


class DecodedSize:
    """Adds up the decoded bytes of one capture and raises ReportError above --max-decoded."""

    def __init__(self, name: str) -> None:
        self.name, self.limit, self.total = name, MAX_DECODED.get(), 0

    def add(self, count: int) -> None:
        """Count decoded bytes. Raises ReportError above the limit."""
        self.total += count
        self.check(0)

    def check(self, count: int) -> None:
        """Raise ReportError if `count` more bytes would exceed the limit."""
        if self.total + count > self.limit:
            raise ReportError(
                f"{self.name}: decodes to more than {size_text(self.limit)}; if you trust it, raise the limit: "
                f"--max-decoded {size_text(2 * self.limit)}"
            )

    def check_text(self, length: int) -> None:
        """Raise NotAnExportError if `length`, a text's size in bytes, exceeds MAX_TEXT."""
        if length > MAX_TEXT:
            raise NotAnExportError(
                f"{self.name}: holds a text of {size_text(length)}, and the limit is {size_text(MAX_TEXT)}; "
                "check where the file comes from, and capture it again"
            )


def size_text(count: int) -> str:
    """Return a number of bytes in the notation of --max-decoded: 4GB, 67.1MB."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f}".removesuffix(".0") + name
    return f"{count}B"
