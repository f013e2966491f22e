"""Decodes tables without the reader."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import polars as pl

from traceview.read.sqlite.reader import decoded_frame
from traceview.read.sqlite_pages import table_decoder


def read_integers(path: Path, connection: sqlite3.Connection, table: str, columns: list[str]) -> pl.DataFrame | None:
    """Return integer columns of a table from its pages, in row order; None if SQLite must read them."""
    decoder = table_decoder(path, connection, table, columns)
    return None if decoder is None else decoded_frame(decoder)
