"""The tables of Nsight Systems' SQLite export, as frames."""

from __future__ import annotations

import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import polars as pl

from traceview.errors import DamagedExportError
from traceview.read import pages
from traceview.read.ahead import Ahead
from traceview.read.database import (
    EXPORT_AGAIN,
    check_file,
    columns_of,
    not_an_export,
    open_read_only,
    real_tables,
    shown,
    state_of,
    versions,
)
from traceview.read.frames import frame_of
from traceview.read.limits import DecodedSize
from traceview.read.raw import NOT_A_TIME, STRINGS, TABLES, TIMES, RawCapture, wanted_columns

BATCH = 200_000
TABLES_AT_ONCE = 3  # one may wait for what is decoded ahead


def read_sqlite(path: str | Path, ahead: Ahead | None = None) -> RawCapture:
    """Read the tables and columns that the analysis needs; `ahead` may have decoded some.

    Raises NotFoundError, NotAnExportError or DamagedExportError, each with one line that says what
    to do. The file and its folder stay as they were.
    """
    path = Path(path)
    check_file(path)
    before = state_of(path)
    with open_read_only(path) as connection:
        present = real_tables(connection, shown(path))
        if STRINGS not in present:
            raise not_an_export(shown(path), present)
        problems: list[str] = []
        still = ahead if ahead is not None and ahead.state == before else None
        tables = _read_tables(connection, path, [name for name in TABLES if name in present], problems, still)
        version, schema = versions(connection, present)
    if state_of(path) != before:
        raise DamagedExportError(f"{shown(path)}: changed while it was read; wait for nsys export to end")
    return RawCapture(path.name, version, schema, tables, tuple(problems))


def _read_tables(
    connection: sqlite3.Connection, path: Path, names: list[str], problems: list[str], ahead: Ahead | None
) -> dict[str, pl.DataFrame]:
    """Read tables: columns of plain integers are decoded aside, while SQLite reads those of texts."""

    def decoded(name: str, plan: pages.Plan) -> pl.DataFrame | None:
        found = (None if ahead is None else ahead.columns(name, plan)) or pages.decoded(plan)
        return None if found is None else frame_of(found)

    said: dict[str, list[str]] = {name: [] for name in names}
    present = {name: columns_of(connection, name) for name in names}
    columns = {
        name: wanted_columns(present[name], name, said[name], file=shown(path), remedy=EXPORT_AGAIN) for name in names
    }
    with ThreadPoolExecutor(TABLES_AT_ONCE) as aside:
        later = {
            name: aside.submit(decoded, name, plan)
            for name, some in sorted(columns.items(), key=lambda one: not TABLES[one[0]].text)
            if some and (plan := _plan(path, connection, name, some)) is not None
        }

        def read(name: str) -> pl.DataFrame:
            some = columns[name]
            if some is None:
                return pl.DataFrame()
            return _read(connection, name, some, later.get(name), said[name])

        found = {name: read(name) for name in sorted(names, key=lambda name: (name in later, not TABLES[name].text))}
    problems.extend(line for name in names for line in said[name])
    return {name: found[name] for name in names}


def _plan(path: Path, connection: sqlite3.Connection, table: str, columns: list[str]) -> pages.Plan | None:
    """Return how a table's numbers are decoded; None where every row has a text, too."""
    of = TABLES[table]
    if not set(of.text).isdisjoint(of.needed):
        return None
    return pages.plan(path, connection, table, [column for column in columns if column not in of.text])


def _read(
    connection: sqlite3.Connection,
    table: str,
    columns: list[str],
    numbers: Future[pl.DataFrame | None] | None,
    problems: list[str],
) -> pl.DataFrame:
    """Read a table whose numbers may be decoded aside: then SQLite reads its texts alone, a fifth of the time."""
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
    text = TABLES[table].text
    schema = {column: pl.String if column in text else pl.Int64 for column in columns}
    if not columns:
        return pl.DataFrame()
    # SQLite itself tells the types apart; the rows with a time of another type are counted when they are left out.
    kinds = {column: "text" if column in text else "integer" for column in columns}
    selected = ", ".join(_typed(column, kind) for column, kind in kinds.items())
    strange = [f"typeof(\"{one}\") NOT IN ('null', '{kind}')" for one, kind in kinds.items() if one not in TIMES]
    cursor = connection.execute(f'SELECT {selected} FROM "{table}"')
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
