"""A capture that changes while it is read is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traceview.errors import DamagedExportError
from traceview.read.sqlite.database import shown

TABLES = (".parquet", ".arrow")  # what a folder of tables consists of

State = tuple[tuple[str, int, int, int, int, int], ...]


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Check that a file, or each table of a folder, stays the same until the end of the context.

    Raises DamagedExportError.
    """
    before = state_of(path)
    yield
    if state_of(path) != before:
        raise DamagedExportError(f"{shown(path)}: changed while it was read; wait until it is written")


def state_of(path: Path) -> State:
    """Return the name, device, inode, size, mtime and ctime of a file, or of each table in a folder.

    A program can restore size and mtime after a write, but not ctime. Raises DamagedExportError.
    """
    try:
        files = _tables(path) if path.is_dir() else [path]
        stats = [(file.name, file.stat()) for file in files]
    except OSError:
        raise DamagedExportError(f"{shown(path)}: went away while it was read") from None
    return tuple((name, at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for name, at in stats)


def _tables(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in TABLES and path.is_file())
