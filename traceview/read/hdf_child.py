"""The part of hdf.py that calls h5py: a program of its own, for a damaged file can make libhdf5 loop or crash.

python -c "from traceview.read.hdf_child import main; main()" FILE FOLDER
writes each table of FILE, with all its columns, to FOLDER as TABLE.parquet.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import polars as pl

from traceview.read import raw
from traceview.read.parquet import ROWS_A_BYTE, SMALL

NOT_AN_EXPORT, TOO_MANY_ROWS = 3, 4  # exit codes; any other but 0 is a damaged file
NULL_IF_ZERO = dict.fromkeys((raw.NVTX, *raw.MPI), ("end", "textId"))
FILTERS = {1, 2, 3}  # deflate, shuffle, checksum; another one would load a library that the file names
PLAIN = re.compile(r"\w{1,64}", re.ASCII)


def main() -> None:
    """Convert the file that the arguments name."""
    path, folder = Path(sys.argv[1]), Path(sys.argv[2])
    h5py = importlib.import_module("h5py")
    with h5py.File(path, "r", locking=False) as file:
        if raw.STRINGS not in file:
            sys.exit(NOT_AN_EXPORT)
        for table in file:
            found = _data_set(h5py, file, table, path.stat().st_size) if PLAIN.fullmatch(table) else None
            if found is not None:
                _table(found, table).write_parquet(folder / f"{table}.parquet", compression="uncompressed")


def _data_set(h5py: Any, file: Any, table: str, size: int) -> Any:
    """Return a table's data set, if all of it is in this file and no larger than it can hold; None for no table."""
    if not isinstance(file.get(table, getlink=True), h5py.HardLink):
        raise ValueError("a link to elsewhere")
    found = file[table]
    if isinstance(found, h5py.Dataset) and found.shape == () and table not in raw.TABLES:
        return None  # nsys until 2022 keeps the names of enumerations so
    if not isinstance(found, h5py.Dataset) or found.external or found.is_virtual or len(found.shape) != 1:
        raise ValueError("no table of its own")
    made = found.id.get_create_plist()
    if {made.get_filter(index)[0] for index in range(made.get_nfilters())} - FILTERS:
        raise ValueError("an unknown compression")
    if found.shape[0] > SMALL + ROWS_A_BYTE * size:
        sys.exit(TOO_MANY_ROWS)
    return found


def _table(found: Any, table: str) -> pl.DataFrame:
    rows = found[:]
    frame = pl.DataFrame([_column(name, rows[name]) for name in found.dtype.names])
    zero = [name for name in NULL_IF_ZERO.get(table, ()) if name in frame.columns]
    empty = [one.name for one in frame if one.dtype == pl.String and table != raw.STRINGS]
    return frame.with_columns(
        *(pl.when(pl.col(name) != 0).then(pl.col(name)).alias(name) for name in zero),
        *(pl.when(pl.col(name) != "").then(pl.col(name)).alias(name) for name in empty),
    )


def _column(name: str, values: Any) -> pl.Series:
    if values.dtype.kind != "O":
        return pl.Series(name, values.copy())
    texts = [one.decode("utf-8", "replace") if isinstance(one, bytes) else None for one in values]
    return pl.Series(name, texts, dtype=pl.String)
