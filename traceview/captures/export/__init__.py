"""Export a capture in the formats of other tools.

contents.py  the events of an export, narrowed to a window and a device
slices.py    what is no GPU work as slices of tracks
perfetto.py  Perfetto's native trace
gpu_stages.py  its GPU data model: GPUs, render stages and counters
wire.py      protobuf's wire format
tables.py    the normalised frames and the declared tables as flat tables in Parquet
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from traceview.captures.export.contents import ExportContents, collect
from traceview.captures.export.perfetto import pieces
from traceview.captures.export.tables import FILES, write_tables
from traceview.model.frozen import dataclass
from traceview.report.files import check_file, check_folder, new_folder, write_pieces

__all__ = ["FORMATS", "ExportContents", "Written", "check_output", "collect", "pieces", "write", "write_trace"]

GZIP_LEVEL = 4  # higher levels take twice as long for a hardly smaller file
# The formats, and what they add to a report's name: Perfetto's is a file, Parquet's a folder of tables.
FORMATS: Mapping[str, str] = {"perfetto": ".pftrace", "parquet": ".parquet-tables"}


def check_output(form: str, path: Path) -> None:
    """Raise OutputError if an export in this format cannot be written to `path`, before any work is done."""
    if form == "parquet":
        check_folder(path, FILES)
    else:
        check_file(path)


def write(contents: ExportContents, form: str, path: Path) -> None:
    """Write the file or the folder atomically. Raises OutputError."""
    if form == "parquet":
        with new_folder(path) as folder:
            write_tables(contents, folder)
    else:
        write_trace(path, pieces(contents))


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
    def from_output(cls, form: str, path: Path) -> Written:
        """Return what is in the written file or folder."""
        files = [path / name for name in FILES] if form == "parquet" else [path]
        sizes = tuple(WrittenFile(file.name, file.stat().st_size) for file in files if file.exists())
        return cls(form, path.name, sizes)


def write_trace(path: Path, pieces: Iterable[bytes]) -> None:
    """Write the file atomically, gzip-compressed if the name ends with .gz. Raises OutputError."""
    write_pieces(path, _gzipped(pieces) if path.name.endswith(".gz") else pieces)


def _gzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Compress with gzip. The header has no name and no time, so that equal content gives equal bytes."""
    packer = zlib.compressobj(GZIP_LEVEL, wbits=16 + zlib.MAX_WBITS)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()
