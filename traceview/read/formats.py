"""Which reader a capture needs: by what it holds, never by what it is called."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from traceview.errors import NotAnExportError, ReportError
from traceview.read import compressed, kineto, nsys_rep
from traceview.read.parquet import directory
from traceview.read.raw import RawCapture
from traceview.read.sqlite.database import HEADER, check_file, shown
from traceview.read.sqlite.reader import read_sqlite
from traceview.read.sqlite.write import product_of, tables_of, write_sqlite
from traceview.read.unchanged import unchanged

HEAD = 512

Reader = Callable[[Path], RawCapture]
READERS: tuple[tuple[Callable[[bytes], bool], Reader], ...] = ((kineto.is_trace, kineto.read_kineto),)


def read_capture(path: str | Path) -> RawCapture:
    """Read an export of nsys (SQLite or a folder of tables), a .nsys-rep or a trace of torch.profiler, also packed.

    `file` of the result is the name of the given file. Raises ReportError as read_sqlite does.
    """
    path = Path(path)
    if (suffix := _folder(path)) is not None:
        with unchanged(path):
            return directory.read_directory(path, suffix)
    with _unpacked(path) as inside:
        reader = _reader(_head(inside))
        if reader is not None:
            with unchanged(inside):
                return replace(reader(inside), file=path.name)
        with _exported(inside) as export:
            capture = replace(read_sqlite(export), file=path.name)
            # A copy that redact made of a trace: nsys would have said its version.
            is_copy = capture.nsys_version is None and product_of(export) == kineto.PROFILER
            return kineto.with_lacks(capture) if is_copy else capture


def check_capture(path: Path) -> None:
    """Refuse what cannot be read before time is spent on it. Raises ReportError."""
    if _folder(path) is not None:
        return
    head = _head(path)
    nsys_rep.refuse_other_exports(path, head)
    if nsys_rep.is_report(head):
        nsys_rep.find_nsys(shown(path))
    elif not compressed.is_packed(head) and _reader(head) is None:
        if head and not head.startswith(HEADER):
            nsys_rep.refuse_stream(path, head)
        check_file(path)


@contextmanager
def as_sqlite(path: Path) -> Iterator[Path]:
    """Yield an SQLite export of a capture: itself, or one in a private folder that is then removed.

    Raises ReportError.
    """
    with ExitStack() as stack:
        if (suffix := _folder(path)) is not None:
            folder = stack.enter_context(_private_folder(path))
            yield write_sqlite(shown(path), directory.every_table(path, suffix), folder)
            return
        inside = stack.enter_context(_unpacked(path))
        reader = _reader(_head(inside))
        if reader is None:
            yield stack.enter_context(_exported(inside))
            return
        folder = stack.enter_context(_private_folder(path))
        yield write_sqlite(shown(path), tables_of(reader(inside)), folder)


@contextmanager
def with_tables(path: Path) -> Iterator[tuple[Path, RawCapture | None]]:
    """Yield an SQLite export that has the tables that the analysis reads, and the capture where it was read for that.

    Raises ReportError.
    """
    with ExitStack() as stack:
        inside = path if _folder(path) is not None else stack.enter_context(_unpacked(path))
        if not inside.is_dir() and _reader(_head(inside)) is not None:
            capture = read_capture(inside)
            folder = stack.enter_context(_private_folder(path))
            yield write_sqlite(shown(path), tables_of(capture), folder), capture
        else:
            yield stack.enter_context(as_sqlite(inside)), None


def _reader(head: bytes) -> Reader | None:
    """Return what reads a file that begins so; None for SQLite and what nsys makes it of."""
    return next((read for fits, read in READERS if fits(head)), None)


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """Yield the file that is in a packed one, or the file itself."""
    check_capture(path)
    if not compressed.is_packed(_head(path)):
        yield path
        return
    with _private_folder(path) as folder, unchanged(path):
        inside = compressed.unpack(path, folder)
        if compressed.is_packed(_head(inside)):
            raise NotAnExportError(f"{shown(path)}: packed twice; unpack it once")
        check_capture(inside)
        yield inside


@contextmanager
def _exported(path: Path) -> Iterator[Path]:
    """Yield the SQLite export of a report, or the file itself."""
    if not nsys_rep.is_report(head := _head(path)):
        yield path
        return
    with _private_folder(path) as folder, unchanged(path):
        yield nsys_rep.export(path, head, folder)


def _folder(path: Path) -> str | None:
    try:
        return directory.kind_of(path) if path.is_dir() else None
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
