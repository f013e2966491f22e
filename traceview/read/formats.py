"""Which reader a capture needs: by what it holds, never by what it is called."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from traceview.errors import DamagedExportError, NotAnExportError, ReportError
from traceview.read import compressed, nsys_rep, parquet, sqlite
from traceview.read.raw import RawCapture
from traceview.read.sqlite import read_sqlite, shown

HEAD = 512


def read_capture(path: str | Path) -> RawCapture:
    """Read an SQLite export (also packed with gzip, xz or zstd), a .nsys-rep, or a parquetdir or arrowdir.

    `file` of the result is the name of what was given. Raises ReportError as read_sqlite does.
    """
    path = Path(path)
    if (suffix := _folder(path)) is not None:
        return parquet.read_directory(path, suffix)
    with as_sqlite(path) as export:
        return replace(read_sqlite(export), file=path.name)


def check_capture(path: Path) -> None:
    """Refuse what cannot be read before time is spent on it. Raises ReportError."""
    if _folder(path) is not None:
        return
    head = _head(path)
    if nsys_rep.is_report(head):
        nsys_rep.find_nsys(shown(path))
    elif not compressed.is_packed(head):
        if head and not head.startswith(sqlite.HEADER):
            nsys_rep.refuse_stream(path, head)
        sqlite.check_file(path)


@contextmanager
def as_sqlite(path: Path) -> Iterator[Path]:
    """Yield an SQLite export of a capture: itself, or one in a private folder that is then removed.

    Raises ReportError.
    """
    if _folder(path) is not None:
        raise NotAnExportError(f"{shown(path)}: a folder of tables; this needs the .sqlite export of the same report")
    check_capture(path)
    head = _head(path)
    if not compressed.is_packed(head) and not nsys_rep.is_report(head):
        yield path
        return
    with _private_folder(path) as folder:
        before = _state(path)
        export = _made(path, head, folder)
        if _state(path) != before:
            raise DamagedExportError(f"{shown(path)}: changed while it was read; wait until it is written")
        yield export


def _made(path: Path, head: bytes, folder: Path) -> Path:
    if nsys_rep.is_report(head):
        return nsys_rep.export(path, head, folder)
    inside = compressed.unpack(path, folder)
    head = _head(inside)
    if compressed.is_packed(head):
        raise NotAnExportError(f"{shown(path)}: packed twice; unpack it once")
    if nsys_rep.is_report(head):
        return nsys_rep.export(inside, head, folder)
    check_capture(inside)
    return inside


def _folder(path: Path) -> str | None:
    try:
        return parquet.kind_of(path) if path.is_dir() else None
    except OSError:
        return None


def _head(path: Path) -> bytes:
    """Return a file's first bytes; none where it cannot be read, which check_file puts into words."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(HEAD)
    except OSError:
        return b""


def _state(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        raise DamagedExportError(f"{shown(path)}: went away while it was read") from None
    return found.st_size, found.st_mtime_ns


@contextmanager
def _private_folder(path: Path) -> Iterator[Path]:
    try:
        made = tempfile.TemporaryDirectory(prefix="traceview-", ignore_cleanup_errors=True)
    except OSError as error:
        raise ReportError(
            f"{shown(path)}: no temporary folder can be made ({error.strerror}); set TMPDIR to one that can be written"
        ) from None
    with made as folder:
        yield Path(folder)
