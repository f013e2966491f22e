"""The tables of Nsight Systems' SQLite export, as frames."""

from __future__ import annotations

import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import polars as pl

from traceview.read.limits import DecodedSize
from traceview.read.raw import NOT_A_TIME, STRINGS, TABLES, TIMES, RawCapture, wanted_columns
from traceview.read.sqlite.database import (
    EXPORT_AGAIN,
    check_file,
    columns_of,
    not_an_export,
    open_read_only,
    primary_key_order,
    real_tables,
    shown,
    versions,
    views_among,
)
from traceview.read.sqlite_pages import Column, TableDecoder, table_decoder
from traceview.read.unchanged import unchanged

BATCH = 200_000
DECODED_AT_ONCE = 2  # large tables, beside the one that SQLite reads


def read_sqlite(path: str | Path) -> RawCapture:
    """Read the tables and columns that the analysis needs.

    Raises NotFoundError, NotAnExportError or DamagedExportError, each with one line that says what
    to do. The file and its folder stay as they were.
    """
    path = Path(path)
    check_file(path)
    with unchanged(path), open_read_only(path) as connection:
        present = real_tables(connection, shown(path))
        if STRINGS not in present:
            raise not_an_export(shown(path), present)
        problems = [
            f"{name} is a {kind}, not a table: its rows are left out; {EXPORT_AGAIN}"
            for name, kind in views_among(connection, TABLES)
        ]
        tables = _read_tables(connection, path, [name for name in TABLES if name in present], problems)
        version, schema = versions(connection, present)
    return RawCapture(path.name, version, schema, tables, tuple(problems))


def _read_tables(
    connection: sqlite3.Connection, path: Path, names: list[str], problems: list[str]
) -> dict[str, pl.DataFrame]:
    """Read tables: other threads decode columns of plain integers while SQLite reads the columns of text."""
    notes: dict[str, list[str]] = {name: [] for name in names}
    present = {name: columns_of(connection, name) for name in names}
    columns = {
        name: wanted_columns(present[name], name, notes[name], file=shown(path), remedy=EXPORT_AGAIN) for name in names
    }
    with ThreadPoolExecutor(DECODED_AT_ONCE) as threads:
        decoded = {
            name: threads.submit(decoded_frame, decoder)
            for name, wanted in sorted(columns.items(), key=lambda item: not TABLES[item[0]].text)
            if wanted and (decoder := _decoder(path, connection, name, wanted)) is not None
        }

        def read(name: str) -> pl.DataFrame:
            wanted = columns[name]
            if wanted is None:
                return pl.DataFrame()
            return _read(connection, name, wanted, decoded.get(name), notes[name])

        # SQLite reads while the threads decode: tables without a decoder come first, and texts before numbers.
        order = sorted(names, key=lambda name: (name in decoded, not TABLES[name].text))
        frames = {name: read(name) for name in order}
    problems.extend(line for name in names for line in notes[name])
    return {name: frames[name] for name in names}


def decoded_frame(decoder: TableDecoder) -> pl.DataFrame | None:
    """Return a table's integer columns as a frame, nulls kept; None where SQLite must read them."""
    columns = decoder.decode()
    return None if columns is None else pl.DataFrame([_series(name, column) for name, column in columns.items()])


def _series(name: str, column: Column) -> pl.Series:
    series = pl.Series(name, column.values)
    return series if column.null is None or not column.null.any() else series.set(pl.Series(column.null), None)


def _decoder(path: Path, connection: sqlite3.Connection, table: str, columns: list[str]) -> TableDecoder | None:
    """Return the decoder of a table's numbers; None where every row has a text, which SQLite must read anyway."""
    wanted = TABLES[table]
    if not set(wanted.text).isdisjoint(wanted.needed):
        return None
    return table_decoder(path, connection, table, [column for column in columns if column not in wanted.text])


def _read(
    connection: sqlite3.Connection,
    table: str,
    columns: list[str],
    numbers: Future[pl.DataFrame | None] | None,
    problems: list[str],
) -> pl.DataFrame:
    """Read a table: its texts by SQLite, and its numbers too unless another thread decodes them.

    Both read the rows in one order, that of the table's own b-tree.
    """
    frame = None if numbers is None else numbers.result()
    if frame is None:
        return _read_slowly(connection, table, columns, problems)
    texts = [column for column in columns if column in TABLES[table].text]
    if not texts:
        return frame
    odd: list[str] = []
    beside = _read_slowly(connection, table, texts, odd)
    if len(beside) != len(frame):
        return _read_slowly(connection, table, columns, problems)
    problems.extend(odd)
    return pl.concat([frame, beside], how="horizontal").select(columns)


def _read_slowly(connection: sqlite3.Connection, table: str, columns: list[str], problems: list[str]) -> pl.DataFrame:
    """Read columns by SQLite, in the order of the table: an index that holds all of them would give its own order."""
    text = TABLES[table].text
    schema = {column: pl.String if column in text else pl.Int64 for column in columns}
    if not columns:
        return pl.DataFrame()
    # SQLite tells the types apart. Rows whose time has another type are counted where they are left out.
    kinds = {column: "text" if column in text else "integer" for column in columns}
    selected = ", ".join(_typed(column, kind) for column, kind in kinds.items())
    strange = [f"typeof(\"{name}\") NOT IN ('null', '{kind}')" for name, kind in kinds.items() if name not in TIMES]
    order = primary_key_order(connection, table)
    cursor = connection.execute(f'SELECT {selected} FROM "{table}" NOT INDEXED {order}')
    frames = []
    numbers = DecodedSize(table)  # open_read_only counts the texts
    while rows := cursor.fetchmany(BATCH):
        numbers.add(8 * len(columns) * len(rows))
        frames.append(pl.DataFrame(rows, schema=schema, orient="row"))
    query = f'SELECT count(*) FROM "{table}" WHERE {" OR ".join(strange) or "0"}'
    if odd := int(connection.execute(query).fetchone()[0]):
        problems.append(f"{table}: {odd} rows hold a value of the wrong type there")
    return pl.concat(frames) if frames else pl.DataFrame(schema=schema)


def _typed(column: str, kind: str) -> str:
    """Return SQL for a column in which a value of another type is null, or no time where a time should be."""
    other = f" WHEN 'null' THEN NULL ELSE {NOT_A_TIME + 1} - 1" if column in TIMES else ""
    return f'CASE typeof("{column}") WHEN \'{kind}\' THEN "{column}"{other} END'
