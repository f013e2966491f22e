"""One Parquet file a table: types and names as they are."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from traceview.export.contents import Contents
from traceview.export.tables import TABLES, tables

FILES = tuple(f"{table.name}.parquet" for table in TABLES)


def write(contents: Contents, folder: Path) -> None:
    """Write every table into a folder."""
    for name, frame in tables(contents):
        try:
            frame.write_parquet(folder / f"{name}.parquet")
        except pl.exceptions.ComputeError as error:  # what polars makes of a full disk
            raise OSError(None, str(error).rpartition("IO error: ")[2]) from None
