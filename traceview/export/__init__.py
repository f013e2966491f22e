"""A capture in other tools' formats.

contents.py    what is exported: the events of the window and devices that were asked for
timeline.py    every event as a slice of a row (tracks.py), in lanes where it does not nest (lanes.py)
throughput.py  the copies' bytes a second, a counter
perfetto.py    Perfetto's native trace, in protobuf's wire format (wire.py)
chrome.py      the Trace Event Format
tables.py      the normalised frames as flat tables: csv.py, parquet.py
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from traceview.export import chrome, csv, parquet, perfetto
from traceview.export.contents import Contents, collect
from traceview.files import check_file, check_folder, new_folder, write_pieces

__all__ = ["FORMATS", "Contents", "FileFormat", "FolderFormat", "Format", "collect"]

PACKING_LEVEL = 4  # higher levels hardly shrink the file and take twice as long


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format that is one file; `pieces` makes its bytes, one after the other."""

    name: str
    suffix: str
    pieces: Callable[[Contents], Iterator[bytes]]

    def check(self, path: Path) -> None:
        """Refuse a place before time is spent on it. Raises OutputError."""
        check_file(path)

    def write(self, contents: Contents, path: Path) -> None:
        """Write the file, whole or not at all; packed with gzip where the name ends with .gz. Raises OutputError."""
        pieces = self.pieces(contents)
        write_pieces(path, _gzipped(pieces) if path.name.endswith(".gz") else pieces)


@dataclass(frozen=True, slots=True)
class FolderFormat:
    """A format that is a folder of tables; `fill` writes the `files` into it."""

    name: str
    suffix: str
    fill: Callable[[Contents, Path], None]
    files: tuple[str, ...]

    def check(self, path: Path) -> None:
        """Refuse a place before time is spent on it. Raises OutputError."""
        check_folder(path, self.files)

    def write(self, contents: Contents, path: Path) -> None:
        """Write the folder, whole or not at all. Raises OutputError."""
        with new_folder(path) as folder:
            self.fill(contents, folder)


Format = FileFormat | FolderFormat

FORMATS: tuple[Format, ...] = (
    FileFormat("perfetto", ".pftrace", perfetto.pieces),
    FileFormat("chrome", ".trace.json", chrome.pieces),
    FolderFormat("csv", ".csv-tables", csv.write, csv.FILES),
    FolderFormat("parquet", ".parquet-tables", parquet.write, parquet.FILES),
)


def _gzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Pack pieces with gzip; the header has neither a name nor a time, so that equal content gives equal bytes."""
    packer = zlib.compressobj(PACKING_LEVEL, wbits=16 + zlib.MAX_WBITS)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()
