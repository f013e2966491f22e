"""Decodes tables without the reader."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from traceview.read.raw import SHAPE
from traceview.read.sqlite.decoder import TableDecoder, table_decoder


def read_integers(
    path: Path, connection: sqlite3.Connection, table: str, columns: list[str], grouped: Sequence[str] = ()
) -> pl.DataFrame | None:
    """Return integer columns of a table from its pages, in row order; None if SQLite must read them.

    The different rows of the columns `grouped` are decoded once, and repeated here.
    """
    plain = [column for column in columns if column not in grouped]
    decoder = table_decoder(path, connection, table, plain, grouped)
    return None if decoder is None else complete_frame(decoder, columns)


def complete_frame(decoder: TableDecoder, columns: list[str]) -> pl.DataFrame | None:
    """Return the columns of a decoder, with the grouped ones repeated for each row."""
    decoded = decoder.decode()
    if decoded is None or decoded.groups is None:
        return None if decoded is None else decoded.columns
    repeated = decoded.groups[decoded.columns[SHAPE]]
    return pl.concat([decoded.columns.drop(SHAPE), repeated], how="horizontal").select(columns)
