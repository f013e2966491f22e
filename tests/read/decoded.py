"""Tables as their pages are decoded, without the reader around it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import polars as pl

from traceview.read import pages
from traceview.read.sqlite import decoded_frame


def read_integers(path: Path, connection: sqlite3.Connection, table: str, columns: list[str]) -> pl.DataFrame | None:
    """Return integer columns of a table from its pages, in the order of its rows; None where SQLite must do it."""
    planned = pages.plan(path, connection, table, columns)
    return None if planned is None else decoded_frame(planned)
