"""Export a capture in the formats of other tools.

contents.py  the events of an export, narrowed to a window and a device
slices.py    what is no GPU work as slices of tracks
perfetto.py  Perfetto's native trace
gpu_stages.py  its GPU data model: GPUs, render stages and counters
wire.py      protobuf's wire format
stacks.py    time by stack: speedscope's format, and collapsed stacks
tables.py    the normalised frames and the declared tables as flat tables: CSV and Parquet
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from traceview.exporters import perfetto, stacks, tables
from traceview.exporters.contents import ExportContents, collect
from traceview.report.files import check_file, check_folder, new_folder, write_pieces

__all__ = ["FORMATS", "ExportContents", "FileFormat", "FolderFormat", "Format", "Written", "collect", "write_trace"]

GZIP_LEVEL = 4  # higher levels take twice as long for a hardly smaller file


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format that is a file. `pieces` yields its bytes."""

    name: str
    suffix: str
    pieces: Callable[[ExportContents], Iterator[bytes]]

    def check(self, path: Path) -> None:
        """Raise OutputError if `path` cannot be written, before any work is done."""
        check_file(path)

    def write(self, contents: ExportContents, path: Path) -> None:
        """Write the file atomically, gzip-compressed if the name ends with .gz. Raises OutputError."""
        write_trace(path, self.pieces(contents))


@dataclass(frozen=True, slots=True)
class FolderFormat:
    """A format that is a folder of tables. `fill` writes `files` into it."""

    name: str
    suffix: str
    fill: Callable[[ExportContents, Path], None]
    files: tuple[str, ...]

    def check(self, path: Path) -> None:
        """Raise OutputError if `path` cannot be written, before any work is done."""
        check_folder(path, self.files)

    def write(self, contents: ExportContents, path: Path) -> None:
        """Write the folder atomically. Raises OutputError."""
        with new_folder(path) as folder:
            self.fill(contents, folder)


Format = FileFormat | FolderFormat

FORMATS: tuple[Format, ...] = (
    FileFormat("perfetto", ".pftrace", perfetto.pieces),
    FileFormat("speedscope", ".speedscope.json", stacks.speedscope),
    FileFormat("collapsed", ".collapsed.txt", stacks.collapsed_idle),
    FileFormat("collapsed-host", ".collapsed-host.txt", stacks.collapsed_host),
    FolderFormat("csv", ".csv-tables", tables.write_csv, tables.CSV_FILES),
    FolderFormat("parquet", ".parquet-tables", tables.write_parquet, tables.PARQUET_FILES),
)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of an export: its name and size."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Written:
    """What an export wrote: a file, or a folder of files."""

    format: str
    output: str
    files: tuple[WrittenFile, ...]

    @classmethod
    def from_output(cls, form: Format, path: Path) -> Written:
        """Return what is in the written file or folder."""
        files = [path] if isinstance(form, FileFormat) else [path / name for name in form.files]
        return cls(
            form.name, path.name, tuple(WrittenFile(file.name, file.stat().st_size) for file in files if file.exists())
        )


def write_trace(path: Path, pieces: Iterable[bytes]) -> None:
    """Write the file atomically, gzip-compressed if the name ends with .gz. Raises OutputError."""
    write_pieces(path, _gzipped(pieces) if path.name.endswith(".gz") else pieces)


def _gzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Compress with gzip. The header has no name and no time, so that equal content gives equal bytes."""
    packer = zlib.compressobj(GZIP_LEVEL, wbits=16 + zlib.MAX_WBITS)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()
