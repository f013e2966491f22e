"""The file of a capture: its name in messages, its first bytes, and a check that it does not change meanwhile."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traceview.errors import DamagedExportError, NotAnExportError, ReportError

HEAD_BYTES = 512
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
TABLE_SUFFIXES = (".parquet", ".arrow")  # the files in a folder of tables

FileState = tuple[tuple[str, int, int, int, int, int], ...]


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
    """Return the name, device, inode, size, mtime and ctime of a file, or of every table in a folder.

    A program can restore size and mtime after a write, but not ctime. Raises DamagedExportError.
    """
    try:
        files = _table_files(path) if path.is_dir() else [path]
        stats = [(file.name, file.stat()) for file in files]
    except OSError:
        raise DamagedExportError(f"{display_name(path)}: went away while it was read") from None
    return tuple((name, at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for name, at in stats)


def _table_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in TABLE_SUFFIXES and path.is_file())


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
