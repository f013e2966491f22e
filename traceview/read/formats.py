"""Chooses the reader of a capture by its content, never by its name.

A new format takes one module with a class that implements `Reader`, and one entry in READERS.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Protocol, runtime_checkable

from traceview.errors import NotAnExportError
from traceview.read import compressed
from traceview.read.kineto import KinetoReader
from traceview.read.nsys_rep import NsysReportReader, refuse_other_exports, refuse_stream
from traceview.read.parquet.directory import TableFolderReader
from traceview.read.raw import RawCapture
from traceview.read.source import display_name, private_folder, read_head, refuse_pointer, unchanged
from traceview.read.sqlite.reader import SqliteReader
from traceview.read.sqlite.write import tables_with_metadata, write_sqlite


class Reader(Protocol):
    """Reads one capture format."""

    kind: str  # what a list of captures calls it

    def matches(self, path: Path, head: bytes, /) -> bool:
        """Return whether a file or folder, and the file's first HEAD_BYTES, have this format."""

    def read(self, path: Path) -> RawCapture:
        """Read the tables that the analysis needs. Raises ReportError."""


@runtime_checkable
class NsysReader(Reader, Protocol):
    """Reads one of nsys's own formats, which hold more tables than the analysis reads."""

    def check(self, path: Path) -> None:
        """Refuse a capture that `read` cannot read, before it costs time. Raises ReportError."""

    def as_sqlite(self, path: Path) -> AbstractContextManager[Path]:
        """Return a context with an SQLite export of all tables. Raises ReportError."""


MAX_ENTRIES = 10_000
TRACE_WORDS = (b"traceEvents", b"schemaVersion", b"deviceProperties", b"distributedInfo")  # near a trace's beginning
READERS: tuple[Reader, ...] = (TableFolderReader(), NsysReportReader(), KinetoReader(), SqliteReader())


def read_capture(path: str | Path) -> RawCapture:
    """Read a capture: an export of nsys (SQLite or a folder of tables), a .nsys-rep or a torch.profiler trace.

    A file may be compressed. `file` of the result is the name of the given file. Raises ReportError.
    """
    path = Path(path)
    with _source_and_reader(path) as (source, reader):
        return reader.read(source)._replace(file=path.name)


def check_capture(path: Path) -> None:
    """Refuse a capture that cannot be read before time is spent on it. Raises ReportError."""
    if not compressed.is_packed(read_head(path)):
        _reader_of(path)


@contextmanager
def as_sqlite(path: Path) -> Iterator[Path]:
    """Yield an SQLite export of a capture: the file itself, or a temporary one that is then removed.

    Raises ReportError; DamagedExportError if the capture changes before the context ends.
    """
    with with_tables(path) as (export, _):
        yield export


def is_capture_folder(folder: Path) -> bool:
    """Return whether a folder is a capture: an export of nsys with a file for each table."""
    return any(reader.matches(folder, b"") for reader in READERS)


def captures_in(folder: Path) -> list[tuple[Path, str]]:
    """Return the captures in a folder with their kinds, by name; at most MAX_ENTRIES entries are looked at."""
    entries = sorted(islice(folder.iterdir(), MAX_ENTRIES))
    kinds = ((path, kind_of(path)) for path in entries if not path.name.startswith("."))
    return [(path, kind) for path, kind in kinds if kind]


def kind_of(path: Path) -> str:
    """Return the kind of capture that a file or folder seems to be from its first bytes; "" for none."""
    head = read_head(path)
    if compressed.is_packed(head):
        return "compressed" if Path(path.stem).suffix in (".sqlite", ".json", ".nsys-rep") else ""
    reader = next((reader for reader in READERS if reader.matches(path, head)), None)
    is_other_json = isinstance(reader, KinetoReader) and not any(word in head for word in TRACE_WORDS)
    return "" if reader is None or is_other_json else reader.kind


@contextmanager
def with_tables(path: Path) -> Iterator[tuple[Path, RawCapture | None]]:
    """Yield an SQLite export of a capture, and the RawCapture if the export had to be made from it.

    Raises ReportError; DamagedExportError if the capture changes before the context ends.
    """
    with _source_and_reader(path) as (source, reader):
        if isinstance(reader, NsysReader):
            with reader.as_sqlite(source) as export:
                yield export, None
        else:
            capture = reader.read(source)._replace(file=source.name)
            with private_folder(path) as folder:
                yield write_sqlite(display_name(path), tables_with_metadata(capture), folder), capture


@contextmanager
def _source_and_reader(path: Path) -> Iterator[tuple[Path, Reader]]:
    """Yield the capture, decompressed if necessary, and its reader; check that `path` does not change meanwhile."""
    if not compressed.is_packed(read_head(path)):
        reader = _reader_of(path)
        with unchanged(path):
            yield path, reader
        return
    with private_folder(path) as folder, unchanged(path):
        inner = compressed.unpack(path, folder)
        if compressed.is_packed(read_head(inner)):
            raise NotAnExportError(f"{display_name(path)}: compressed twice; decompress it once")
        yield inner, _reader_of(inner)


def _reader_of(path: Path) -> Reader:
    """Return the reader of an uncompressed capture. Raises ReportError if none can read it."""
    head = read_head(path)
    refuse_pointer(path, head)
    refuse_other_exports(path, head)
    reader = next((reader for reader in READERS if reader.matches(path, head)), None)
    if reader is None:
        if head:
            refuse_stream(path, head)
        reader = SqliteReader()  # its check names what is wrong
    if isinstance(reader, NsysReader):
        reader.check(path)
    return reader
