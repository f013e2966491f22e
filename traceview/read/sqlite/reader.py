"""Reads the tables of an SQLite export of Nsight Systems as frames.

Writes the tables of any capture as an SQLite export, for code that queries them in SQL.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import polars as pl

from traceview.errors import ReportError
from traceview.read import kineto, payloads, raw
from traceview.read.raw import RawCapture, Wanted
from traceview.read.source import DecodedSize, display_name, unchanged
from traceview.read.sqlite.database import EXPORT_AGAIN, HEADER, Export, check_file, open_export
from traceview.read.sqlite.decoder import DecodedFrames, TableDecoder, table_decoder
from traceview.read.stretch import stretch_that_fits

MAX_BATCH_ROWS, MAX_BATCH_BYTES = 100_000, 256 << 20  # rows, and bytes of texts, that are Python objects at once
PLAIN_NAME = re.compile(r"\w{1,64}", re.ASCII)  # tables and columns with other names are not written
META_TABLE = "META_DATA_EXPORT"
PRODUCT = "EXPORT_PRODUCT_NAME"  # "NVIDIA Nsight Systems" in nsys's own exports


def tables_with_metadata(capture: RawCapture) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield a capture's tables, and a table that names the profiler and its versions."""
    yield from capture.tables.items()
    values = {
        PRODUCT: None if capture.profiler == "nsys" else capture.profiler,
        "EXPORT_PRODUCT_VERSION": capture.nsys_version,
        "EXPORT_SCHEMA_VERSION": capture.schema_version,
    }
    rows = [(name, value) for name, value in values.items() if value is not None]
    yield META_TABLE, pl.DataFrame(rows, schema={"name": pl.String, "value": pl.String}, orient="row")


def product_of(export: Path) -> str | None:
    """Return the product that an export names as its maker; None if it names none."""
    with open_export(export) as database:
        product = database.metadata().get(PRODUCT)
    return None if product is None else str(product)


def write_sqlite(name: str, tables: Iterable[tuple[str, pl.DataFrame]], folder: Path) -> Path:
    """Write tables into a new database in `folder` and return its path; errors call the capture `name`.

    Raises ReportError if the folder has no room.
    """
    path = folder / (name if name.strip("./") else "capture.sqlite")  # errors of later readers show this name
    try:
        write_tables(path, tables)
    except (sqlite3.Error, OverflowError):
        raise ReportError(
            f"{name}: its tables cannot be written to the folder for temporary files; set TMPDIR to a folder with room"
        ) from None
    return path


def write_tables(path: Path, tables: Iterable[tuple[str, pl.DataFrame]]) -> None:
    """Write tables into a new database. Raises sqlite3.Error or OverflowError."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode=OFF")
        for table, frame in tables:
            if PLAIN_NAME.fullmatch(table):
                _write_table(connection, table, frame)


def _write_table(connection: sqlite3.Connection, table: str, frame: pl.DataFrame) -> None:
    columns = [raw.as_stored(column) for column in frame if PLAIN_NAME.fullmatch(column.name)]
    if not columns:
        return
    kinds = {pl.String: "TEXT", pl.Float64: "REAL"}
    declared = ", ".join(f'"{column.name}" {kinds.get(type(column.dtype), "INTEGER")}' for column in columns)
    connection.execute(f'CREATE TABLE "{table}" ({declared})')
    placeholders = ", ".join("?" * len(columns))
    row_bytes = sum(longest_text(column) for column in columns) + 1
    for part in pl.DataFrame(columns).iter_slices(max(1, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES // row_bytes))):
        connection.executemany(f'INSERT INTO "{table}" VALUES ({placeholders})', part.rows())


def longest_text(column: pl.Series) -> int:
    """Return the length in bytes of a column's longest text."""
    longest = column.str.len_bytes().max() if column.dtype == pl.String else 0
    return longest if isinstance(longest, int) else 0


BATCH_ROWS = 200_000
MAX_NATIVE_FRAMES = 5_000_000
# Columns that mean something only together with another table.
ONLY_WITH = ((raw.KERNEL, raw.GRAPH_NODE, raw.GRAPH_NODES), (raw.RUNTIME, raw.STACK_ID, raw.CUDA_STACKS))
ROW_ID = "_rowid_"
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

    def read(self, path: Path, wanted: Wanted | None = None) -> RawCapture:
        """Read an export. Raises ReportError as read_sqlite does."""
        capture = read_sqlite(path, wanted)
        # Redacted copies of torch.profiler traces name the profiler, and have no version of nsys.
        is_trace_copy = capture.nsys_version is None and product_of(path) == raw.TORCH_PROFILER
        return kineto.with_missing(capture) if is_trace_copy else capture

    @contextmanager
    def as_sqlite(self, path: Path) -> Iterator[Path]:
        """Yield the file itself."""
        yield path


def read_sqlite(path: str | Path, wanted: Wanted | None = None) -> RawCapture:
    """Read the tables and columns that the analysis needs. The file and its folder are not modified.

    If an export does not fit into memory, a stretch is read, that of `wanted` if it fits (stretch.py).

    Raises NotFoundError, NotAnExportError or DamagedExportError, each with a one-line message and a remedy.
    """
    path = Path(path)
    check_file(path)
    with unchanged(path), open_export(path) as export:
        export.require_strings()
        problems = export.unread_tables(raw.TABLES)
        names = [table for table in raw.TABLES if table in export.tables and not _is_too_long(export, table, problems)]
        stretch = stretch_that_fits(export, wanted)
        tables, shapes = _read_tables(export, path, names, problems, {} if stretch is None else stretch.rows)
        if raw.has_domain(tables.get(raw.NVTX), payloads.STACK_DOMAIN):
            tables |= payloads.sqlite_samples(export, tables[raw.NVTX])
        if raw.has_domain(tables.get(raw.NVTX), payloads.NCCL_DOMAIN) or payloads.PAYLOAD_SCHEMAS in export.tables:
            tables |= payloads.nccl_calls(export, tables[raw.STRINGS])
        version, schema = export.versions()
    return RawCapture(path.name, version, schema, tables, tuple(problems), shapes=shapes, stretch=stretch)


def read_tables_with_gaps(export: Export, names: Set[str]) -> dict[str, pl.DataFrame]:
    """Return those of the tables that exist, with all columns that the analysis reads; absent columns are null."""
    frames = {
        name: _read_with_sqlite(export, name, _present(export, name), []) for name in names & export.tables.keys()
    }
    return {
        name: frame.with_columns(
            pl.lit(None, pl.String if column in raw.TABLES[name].text else pl.Int64).alias(column)
            for column in raw.TABLES[name].columns
            if column not in frame.columns
        )
        for name, frame in frames.items()
    }


def _present(export: Export, table: str) -> list[str]:
    return [column for column in export.columns(table) if column in raw.TABLES[table].columns]


def _is_too_long(export: Export, table: str, problems: list[str]) -> bool:
    """Return whether a table is not worth its time: millions of frames only name places."""
    if table not in raw.NATIVE_STACKS:
        return False
    try:
        last = export.select("max(rowid)", table).fetchone()[0] or 0
    except sqlite3.Error:
        return False  # no row ids
    if last > MAX_NATIVE_FRAMES:
        problems.append(f"{table} has more than {MAX_NATIVE_FRAMES:,} frames and was left out")
    return bool(last > MAX_NATIVE_FRAMES)


def _read_tables(
    export: Export, path: Path, names: list[str], problems: list[str], rows: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, pl.DataFrame], pl.DataFrame | None]:
    """Read tables: other threads decode columns of plain integers while SQLite reads the columns of text.

    `rows` are the row ids [first, stop) to read, by table. Returns the tables and RawCapture.shapes.
    """
    notes: dict[str, list[str]] = {name: [] for name in names}
    present = {name: export.columns(name) for name in names}
    for table, column, other in ONLY_WITH:
        if other not in names and table in present:
            present[table] = [name for name in present[table] if name != column]
    columns = {
        name: raw.wanted_columns(present[name], name, notes[name], file=display_name(path), remedy=EXPORT_AGAIN)
        for name in names
    }
    decoders = {
        name: decoder
        for name, wanted in sorted(columns.items(), key=lambda item: not raw.TABLES[item[0]].text)
        if wanted and (decoder := _decoder(path, export, name, wanted, rows.get(name))) is not None
    }
    with ThreadPoolExecutor(DECODER_THREADS) as threads:
        decoded = {name: threads.submit(decoder.decode) for name, decoder in decoders.items()}

        def read(name: str) -> pl.DataFrame:
            wanted = columns[name]
            if wanted is None:
                return pl.DataFrame()
            return _read_table(export, name, wanted, decoded.get(name), notes[name], rows.get(name))

        # SQLite reads while the threads decode: tables without a decoder come first, and texts before numbers.
        order = sorted(names, key=lambda name: (name in decoded, not raw.TABLES[name].text))
        frames = {name: read(name) for name in order}
        kernels = decoded[raw.KERNEL].result() if raw.KERNEL in decoded else None
    problems.extend(line for name in names for line in notes[name])
    return {name: frames[name] for name in names}, kernels and kernels.groups


def _decoder(
    path: Path, export: Export, table: str, columns: list[str], rows: tuple[int, int] | None
) -> TableDecoder | None:
    """Return the decoder of a table's numbers; None if every row has a text, which SQLite must read anyway."""
    wanted = raw.TABLES[table]
    if not set(wanted.text).isdisjoint(wanted.needed):
        return None
    grouped = [column for column in columns if table == raw.KERNEL and column in raw.SHAPE_COLUMNS]
    numbers = [column for column in columns if column not in (*wanted.text, *grouped)]
    return table_decoder(path, export.connection, table, numbers, grouped, rows)


def _read_table(
    export: Export,
    table: str,
    columns: list[str],
    numbers: Future[DecodedFrames | None] | None,
    problems: list[str],
    rows: tuple[int, int] | None = None,
) -> pl.DataFrame:
    """Read a table: SQLite reads its texts, and its numbers unless another thread decodes them.

    Both read the rows in the order of the table's own b-tree.
    """
    decoded = None if numbers is None else numbers.result()
    if decoded is None:
        return _read_with_sqlite(export, table, columns, problems, rows)
    frame = decoded.columns
    texts = [column for column in columns if column in raw.TABLES[table].text]
    if not texts:
        return frame
    if len(texts) == 1 and (text := _sparse_text(export, table, texts[0], len(frame), problems)) is not None:
        return frame.with_columns(text).select(columns)
    notes: list[str] = []
    text_frame = _read_with_sqlite(export, table, texts, notes, rows)
    if len(text_frame) != len(frame):
        return _read_with_sqlite(export, table, columns, problems, rows)
    problems.extend(notes)
    return pl.concat([frame, text_frame], how="horizontal").select(columns)


def _sparse_text(export: Export, table: str, column: str, count: int, problems: list[str]) -> pl.Series | None:
    """Read a text column of `count` rows that is null in most; None unless the rows are numbered from 1."""
    if ROW_ID in export.columns(table):
        return None  # a column hides the row ids
    if tuple(export.select(f"{end}({ROW_ID})", table).fetchone()[0] for end in ("min", "max")) != (1, count):
        return None
    cursor = export.select(f"{ROW_ID}, {_typed_column(column, 'text')}", table, f'WHERE "{column}" IS NOT NULL')
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
    return raw.problem_of_rows(table, count, "with a value of the wrong type, which is ignored")


def _read_with_sqlite(
    export: Export, table: str, columns: list[str], problems: list[str], rows: tuple[int, int] | None = None
) -> pl.DataFrame:
    """Read columns with SQLite in table order; with `rows`, those with row ids [first, stop) alone."""
    text = raw.TABLES[table].text
    schema = {column: pl.String if column in text else pl.Int64 for column in columns}
    if not columns:
        return pl.DataFrame()
    kinds = {column: "text" if column in text else "integer" for column in columns}
    selected = ", ".join(_typed_column(column, kind) for column, kind in kinds.items())
    # Normalising counts the rows whose time has the wrong type.
    wrong = [f"typeof(\"{name}\") NOT IN ('null', '{kind}')" for name, kind in kinds.items() if name not in raw.TIMES]
    where = "" if rows is None else f"WHERE {ROW_ID} >= {rows[0]:d} AND {ROW_ID} < {rows[1]:d}"
    cursor = export.select(selected, table, where)
    frames = []
    numbers = DecodedSize(export.name)  # the export counts the texts
    while batch := cursor.fetchmany(BATCH_ROWS):
        numbers.add(8 * len(columns) * len(batch))
        frames.append(pl.DataFrame(batch, schema=schema, orient="row"))
    if count := int(export.select("count(*)", table, f"WHERE {' OR '.join(wrong) or '0'}").fetchone()[0]):
        problems.append(_wrong_type(table, count))
    return pl.concat(frames) if frames else pl.DataFrame(schema=schema)


def _typed_column(column: str, kind: str) -> str:
    """Return SQL for a column in which values of another type are null; in a time column they are raw.NOT_A_TIME."""
    other = f" WHEN 'null' THEN NULL ELSE {raw.NOT_A_TIME + 1} - 1" if column in raw.TIMES else ""
    return f'CASE typeof("{column}") WHEN \'{kind}\' THEN "{column}"{other} END'
