"""A file of `nsys export --type hdf`: one data set a table, columns as in SQLite; hdf_child.py takes it apart.

It has no null: a missing number is 0 and a missing text is empty. Where that makes a difference (a range that the
capture cut off, a name that is a string id) 0 and the empty text are read as null.
"""

from __future__ import annotations

import importlib.util
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import polars as pl

from traceview.errors import DamagedExportError, NotAnExportError, ReportError
from traceview.read import parquet
from traceview.read.child import command
from traceview.read.database import shown
from traceview.read.hdf_child import NOT_AN_EXPORT, TOO_MANY_ROWS
from traceview.read.raw import RawCapture

MAGIC = b"\x89HDF\r\n\x1a\n"
AGAIN = "export it again: nsys export --type hdf REPORT.nsys-rep"
SUFFIX = ".parquet"
PATIENCE, PATIENCE_A_MB = 60, 2  # seconds


def is_hdf(head: bytes) -> bool:
    """Is a file that begins so in the format HDF5?"""
    return head.startswith(MAGIC)


def read_hdf(path: Path) -> RawCapture:
    """Read the tables that the analysis needs. Raises DamagedExportError, NotAnExportError or ReportError."""
    with _taken_apart(path) as folder:
        return replace(parquet.read_directory(folder, SUFFIX), file=path.name)


def every_table(path: Path) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield all tables with all their columns. Raises as read_hdf does."""
    with _taken_apart(path) as folder:
        yield from parquet.every_table(folder, SUFFIX)


@contextmanager
def _taken_apart(path: Path) -> Iterator[Path]:
    """Yield a folder, called as the file, that holds its tables."""
    name = shown(path)
    if importlib.util.find_spec("h5py") is None:
        raise ReportError(
            f"{name}: HDF5 needs the package h5py; pip install 'traceview[hdf]', "
            "or export it as nsys export --type sqlite REPORT.nsys-rep"
        )
    with tempfile.TemporaryDirectory(prefix="traceview-", ignore_cleanup_errors=True) as made:
        folder = Path(made) / path.name
        folder.mkdir()
        code = _run(path, folder)
        if code == NOT_AN_EXPORT:
            raise NotAnExportError(f"{name}: HDF5, but not as nsys exports it; {AGAIN}")
        if code == TOO_MANY_ROWS:
            raise DamagedExportError(f"{name}: a table claims more rows than the file can hold; {AGAIN}")
        if code:
            raise DamagedExportError(f"{name}: cut off or damaged; copy it whole, or {AGAIN}")
        yield folder


def _run(path: Path, folder: Path) -> int:
    """Return the exit code of the child; -1 where it was ended, for a damaged file can hold it forever."""
    nowhere = subprocess.DEVNULL
    converting = command("traceview.read.hdf_child", str(path.resolve()), str(folder))
    with subprocess.Popen(converting, stdin=nowhere, stdout=nowhere, stderr=nowhere) as child:
        try:
            return child.wait(PATIENCE + PATIENCE_A_MB * (path.stat().st_size >> 20))
        except subprocess.TimeoutExpired:
            return -1
        finally:
            child.kill()
