"""Reads the tables of an SQLite export of Nsight Systems as frames."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import polars as pl

from traceview.read import kineto
from traceview.read.limits import DecodedSize
from traceview.read.nccl_payloads import PAYLOAD_SCHEMAS, has_nccl, nccl_calls
from traceview.read.python_stacks import has_samples, sqlite_samples
from traceview.read.raw import (
    CUDA_STACKS,
    GRAPH_NODE,
    GRAPH_NODES,
    KERNEL,
    NATIVE_STACKS,
    NOT_A_TIME,
    NVTX,
    RUNTIME,
    SHAPE_COLUMNS,
    STACK_ID,
    STRINGS,
    TABLES,
    TIMES,
    RawCapture,
    wanted_columns,
)
from traceview.read.source import display_name, unchanged
from traceview.read.sqlite.check import check_file
from traceview.read.sqlite.database import (
    EXPORT_AGAIN,
    HEADER,
    columns_of,
    not_an_export_error,
    open_read_only,
    primary_key_order,
    real_tables,
    unread_tables,
    versions,
)
from traceview.read.sqlite.parts import PAGES_PER_PART, DecodedFrames, PartedTable, decoded_frames
from traceview.read.sqlite.write import product_of
from traceview.read.sqlite_pages import TableDecoder, table_decoder

BATCH_ROWS = 200_000
MAX_NATIVE_FRAMES = 5_000_000
# Columns that mean something only together with another table.
ONLY_WITH = ((KERNEL, GRAPH_NODE, GRAPH_NODES), (RUNTIME, STACK_ID, CUDA_STACKS))
DECODER_THREADS = 2  # large tables decoded at once, while SQLite reads another


class SqliteReader:
    """Reads `nsys export --type sqlite`, and the SQLite copies that `traceview redact` writes."""

    kind = "SQLite export"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether a file with these first bytes is a database."""
        return head.startswith(HEADER)

    def check(self, path: Path) -> None:
        """Check that the file is a finished export. Raises ReportError."""
        check_file(path)

    def read(self, path: Path) -> RawCapture:
        """Read an export. Raises ReportError as read_sqlite does."""
        capture = read_sqlite(path)
        # Redacted copies of torch.profiler traces name the profiler, and have no version of nsys.
        is_trace_copy = capture.nsys_version is None and product_of(path) == kineto.PROFILER
        return kineto.with_missing(capture) if is_trace_copy else capture

    @contextmanager
    def as_sqlite(self, path: Path) -> Iterator[Path]:
        """Yield the file itself."""
        yield path


def read_sqlite(path: str | Path) -> RawCapture:
    """Read the tables and columns that the analysis needs. The file and its folder are not modified.

    Raises NotFoundError, NotAnExportError or DamagedExportError, each with a one-line message and a remedy.
    """
    return read_in_parts(path, ()).rest


class PartedCapture(NamedTuple):
    """An export of which some tables are read in parts. `rest` has the other tables, and empty frames for these."""

    rest: RawCapture
    parted: Mapping[str, PartedTable]


def read_in_parts(path: str | Path, parted: Collection[str], pages_per_part: int = PAGES_PER_PART) -> PartedCapture:
    """Read an export as read_sqlite does, but leave the rows of large tables among `parted` to PartedTable.

    Raises ReportError as read_sqlite does.
    """
    path = Path(path)
    name = display_name(path)
    check_file(path)
    with unchanged(path), open_read_only(path) as connection:
        present = real_tables(connection, name)
        if STRINGS not in present:
            raise not_an_export_error(name, present)
        problems = unread_tables(connection, TABLES)
        names = [table for table in TABLES if table in present and not _is_too_long(connection, table, problems)]
        tables, shapes, in_parts = _read_tables(
            connection, path, names, problems, dict.fromkeys(parted, pages_per_part)
        )
        if has_samples(tables.get(NVTX)):
            tables |= sqlite_samples(connection, tables[NVTX], name)
        if has_nccl(tables.get(NVTX)) or PAYLOAD_SCHEMAS in present:
            tables |= nccl_calls(connection, name)
        version, schema = versions(connection, present)
    return PartedCapture(RawCapture(path.name, version, schema, tables, tuple(problems), shapes=shapes), in_parts)


def _is_too_long(connection: sqlite3.Connection, table: str, problems: list[str]) -> bool:
    """Return whether a table is not worth its time: millions of frames only name places."""
    if table not in NATIVE_STACKS:
        return False
    try:
        last = connection.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0] or 0
    except sqlite3.Error:
        return False  # no row ids
    if last > MAX_NATIVE_FRAMES:
        problems.append(f"{table} has more than {MAX_NATIVE_FRAMES:,} frames and was left out")
    return bool(last > MAX_NATIVE_FRAMES)


def _read_tables(
    connection: sqlite3.Connection, path: Path, names: list[str], problems: list[str], parted: Mapping[str, int]
) -> tuple[dict[str, pl.DataFrame], pl.DataFrame | None, dict[str, PartedTable]]:
    """Read tables: other threads decode columns of plain integers while SQLite reads the columns of text.

    Returns the tables, RawCapture.shapes and the tables that are read in parts: those of `parted`, which has the
    pages of a part.
    """
    notes: dict[str, list[str]] = {name: [] for name in names}
    present = {name: columns_of(connection, name) for name in names}
    for table, column, other in ONLY_WITH:
        if other not in names and table in present:
            present[table] = [name for name in present[table] if name != column]
    columns = {
        name: wanted_columns(present[name], name, notes[name], file=display_name(path), remedy=EXPORT_AGAIN)
        for name in names
    }
    decoders = {
        name: decoder
        for name, wanted in sorted(columns.items(), key=lambda item: not TABLES[item[0]].text)
        if wanted and (decoder := _decoder(path, connection, name, wanted)) is not None
    }
    built = {name: PartedTable.build(decoders[name], pages) for name, pages in parted.items() if name in decoders}
    in_parts = {name: table for name, table in built.items() if table is not None}
    with ThreadPoolExecutor(DECODER_THREADS) as threads:
        decoded = {
            name: threads.submit(decoded_frames, decoder) for name, decoder in decoders.items() if name not in in_parts
        }

        def read(name: str) -> pl.DataFrame:
            wanted = columns[name]
            if wanted is None:
                return pl.DataFrame()
            if name in in_parts:
                return in_parts[name].no_rows()
            return _read_table(connection, name, wanted, decoded.get(name), notes[name])

        # SQLite reads while the threads decode: tables without a decoder come first, and texts before numbers.
        order = sorted(names, key=lambda name: (name in decoded, not TABLES[name].text))
        frames = {name: read(name) for name in order}
        kernels = decoded[KERNEL].result() if KERNEL in decoded else None
    problems.extend(line for name in names for line in notes[name])
    return {name: frames[name] for name in names}, kernels and kernels.groups, in_parts


def _decoder(path: Path, connection: sqlite3.Connection, table: str, columns: list[str]) -> TableDecoder | None:
    """Return the decoder of a table's numbers; None if every row has a text, which SQLite must read anyway."""
    wanted = TABLES[table]
    if not set(wanted.text).isdisjoint(wanted.needed):
        return None
    grouped = [column for column in columns if table == KERNEL and column in SHAPE_COLUMNS]
    numbers = [column for column in columns if column not in (*wanted.text, *grouped)]
    return table_decoder(path, connection, table, numbers, grouped)


def _read_table(
    connection: sqlite3.Connection,
    table: str,
    columns: list[str],
    numbers: Future[DecodedFrames | None] | None,
    problems: list[str],
) -> pl.DataFrame:
    """Read a table: SQLite reads its texts, and its numbers unless another thread decodes them.

    Both read the rows in the order of the table's own b-tree.
    """
    decoded = None if numbers is None else numbers.result()
    if decoded is None:
        return _read_with_sqlite(connection, table, columns, problems)
    frame = decoded.columns
    texts = [column for column in columns if column in TABLES[table].text]
    if not texts:
        return frame
    if len(texts) == 1 and (text := _sparse_text(connection, table, texts[0], len(frame), problems)) is not None:
        return frame.with_columns(text).select(columns)
    notes: list[str] = []
    text_frame = _read_with_sqlite(connection, table, texts, notes)
    if len(text_frame) != len(frame):
        return _read_with_sqlite(connection, table, columns, problems)
    problems.extend(notes)
    return pl.concat([frame, text_frame], how="horizontal").select(columns)


def _sparse_text(
    connection: sqlite3.Connection, table: str, column: str, count: int, problems: list[str]
) -> pl.Series | None:
    """Read a text column of `count` rows that is null in most; None unless the rows are numbered from 1."""
    ends = (f'(SELECT {end}(_rowid_) FROM "{table}")' for end in ("min", "max"))
    if connection.execute(f"SELECT {', '.join(ends)}").fetchone() != (1, count):
        return None
    typed = _typed_column(column, "text")
    cursor = connection.execute(f'SELECT _rowid_, {typed} FROM "{table}" NOT INDEXED WHERE "{column}" IS NOT NULL')
    values: list[str | None] = [None] * count
    wrong = 0
    while rows := cursor.fetchmany(BATCH_ROWS):
        wrong += sum(text is None for _, text in rows)
        for number, text in rows:
            values[number - 1] = text
    if wrong:
        problems.append(_wrong_type(table, wrong))
    return pl.Series(column, values, dtype=pl.String)


def _wrong_type(table: str, count: int) -> str:
    return f"{table}: {count} rows have a value of the wrong type; the value is ignored"


def _read_with_sqlite(
    connection: sqlite3.Connection, table: str, columns: list[str], problems: list[str]
) -> pl.DataFrame:
    """Read columns with SQLite in table order; NOT INDEXED avoids the order of an index that covers the columns."""
    text = TABLES[table].text
    schema = {column: pl.String if column in text else pl.Int64 for column in columns}
    if not columns:
        return pl.DataFrame()
    kinds = {column: "text" if column in text else "integer" for column in columns}
    selected = ", ".join(_typed_column(column, kind) for column, kind in kinds.items())
    # Normalising counts the rows whose time has the wrong type.
    wrong = [f"typeof(\"{name}\") NOT IN ('null', '{kind}')" for name, kind in kinds.items() if name not in TIMES]
    order = primary_key_order(connection, table)
    cursor = connection.execute(f'SELECT {selected} FROM "{table}" NOT INDEXED {order}')
    frames = []
    numbers = DecodedSize(table)  # open_read_only counts the texts
    while rows := cursor.fetchmany(BATCH_ROWS):
        numbers.add(8 * len(columns) * len(rows))
        frames.append(pl.DataFrame(rows, schema=schema, orient="row"))
    query = f'SELECT count(*) FROM "{table}" WHERE {" OR ".join(wrong) or "0"}'
    if count := int(connection.execute(query).fetchone()[0]):
        problems.append(_wrong_type(table, count))
    return pl.concat(frames) if frames else pl.DataFrame(schema=schema)


def _typed_column(column: str, kind: str) -> str:
    """Return SQL for a column in which values of another type are null; in a time column they are NOT_A_TIME."""
    other = f" WHEN 'null' THEN NULL ELSE {NOT_A_TIME + 1} - 1" if column in TIMES else ""
    return f'CASE typeof("{column}") WHEN \'{kind}\' THEN "{column}"{other} END'
