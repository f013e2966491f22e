"""The file of a capture: its name in messages, its first bytes, and a check that it does not change meanwhile.

The decoded size of a capture is limited, because a few kilobytes can describe many gigabytes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from traceview.errors import DamagedExportError, NotAnExportError, ReportError

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


HEAD_BYTES = 512
LFS_POINTER = b"version https://git-lfs.github.com/spec/"

FileState = tuple[tuple[Path, int, int, int, int, int], ...]


def display_name(path: Path) -> str:
    """Return a file's name for a one-line message: line ends and escape sequences in the name become `?`."""
    return "".join(letter if letter.isprintable() else "?" for letter in path.name) or str(path)


def refuse_pointer(path: Path, head: bytes) -> None:
    """Refuse a Git LFS pointer, which a repository holds in place of a large file. Raises NotAnExportError."""
    if head.startswith(LFS_POINTER):
        name = display_name(path)
        raise NotAnExportError(f"{name}: a Git LFS pointer, not the file itself; get the file: git lfs pull -I {name}")


def read_head(path: Path) -> bytes:
    """Return a file's first bytes; empty for a folder, a missing file and an unreadable file."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Check at the end of the context that a file, or every table in a folder, is still the same.

    Raises DamagedExportError.
    """
    before = file_state(path)
    yield
    if file_state(path) != before:
        raise DamagedExportError(f"{display_name(path)}: changed while it was read; wait until it is written")


def file_state(path: Path) -> FileState:
    """Return the path, device, inode, size, mtime and ctime of a file, or of every table in a folder.

    A program can restore size and mtime after a write, but not ctime. Raises DamagedExportError.
    """
    try:
        stats = [(file, file.stat()) for file in table_files(path) or [path]]
    except OSError:
        raise DamagedExportError(f"{display_name(path)}: went away while it was read") from None
    return tuple((file, at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for file, at in stats)


def table_files(folder: Path) -> list[Path]:
    """Return the files, one for each table, of a folder that nsys exported; [] for any other path."""
    with suppress(OSError):
        for suffix in (".parquet", ".arrow"):
            if (folder / f"StringIds{suffix}").is_file():
                return [path for path in sorted(folder.glob(f"*{suffix}")) if path.is_file()]
    return []


@contextmanager
def private_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder for data made from `path`, and remove it afterwards. Raises ReportError."""
    try:
        temporary = tempfile.TemporaryDirectory(prefix="traceview-", ignore_cleanup_errors=True)
    except OSError as error:
        raise ReportError(
            f"{display_name(path)}: cannot create a temporary folder ({error.strerror}); "
            "set TMPDIR to a writable folder"
        ) from None
    with temporary as folder:
        yield Path(folder)
