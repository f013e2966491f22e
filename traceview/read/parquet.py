"""A folder of `nsys export --type parquetdir` or `--type arrowdir`: one file per table, columns as in SQLite.

Files are checked before polars reads them. Polars takes the number of values of a Parquet page as unsigned. A flipped
bit can make it negative: polars then asks for more memory than any machine has, which kills the process without a
message. Only the footer and the page headers are read.

Each message of an Arrow stream has a FlatBuffers table (github.com/apache/arrow, format/Message.fbs). A compressed
buffer begins with its decoded length in 8 bytes. Only record and dictionary batches have buffers.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import polars as pl

from traceview.errors import DamagedExportError, ReportError
from traceview.read import raw
from traceview.read.raw import RawCapture
from traceview.read.source import DecodedSize, display_name, private_folder
from traceview.read.sqlite.database import META_TABLES, version_text
from traceview.read.sqlite.reader import write_sqlite

MAGIC = b"PAR1"
MAX_DEPTH = 16  # nested structures; a footer has six
HEADER_SIZES = (1 << 12, 1 << 20)  # bytes to try for a page header: statistics may contain long texts
# Fields of parquet.thrift.
ROW_GROUPS, COLUMNS, META = 4, 1, 3
PATH, VALUES, PACKED, DATA_AT, DICTIONARY_AT = 3, 5, 7, 9, 11
UNPACKED_SIZE, PACKED_SIZE, KINDS = 2, 3, (5, 7, 8)  # a page's sizes; headers of data, dictionary and data of version 2
DICTIONARY = 7
ENCODING = {5: 2, 8: 4}  # the field with the encoding of the values, for data pages of versions 1 and 2
SHARED_PREFIXES = 7  # DELTA_BYTE_ARRAY: each value may begin with all of the value before
VALUE_BYTES = 8  # size of a decoded number, and smallest size of a text


def check_pages(path: Path) -> dict[str, int]:
    """Return how many bytes each column decodes to, not counting repeated values of its dictionary.

    Raises ValueError if a page header is impossible, OSError if the file cannot be read.
    """
    decoded: dict[str, int] = {}
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(max(size - 8, 0))
        end = file.read(8)
        length = int.from_bytes(end[:4], "little")
        if end[4:] != MAGIC or length > size - 12:
            raise ValueError("no footer")
        file.seek(size - 8 - length)
        footer = _CompactReader(file.read(length)).structure()
        for group in _structures(footer, ROW_GROUPS):
            for column in _structures(group, COLUMNS):
                name, count = _check_column(file, column.get(META), size)
                decoded[name] = decoded.get(name, 0) + count
    return decoded


def _structures(structure: dict[int, Any], field: int) -> list[dict[int, Any]]:
    items = structure.get(field, [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError("no list of structures")
    return items


def _check_column(file: IO[bytes], meta: object, size: int) -> tuple[str, int]:
    """Return the column's name, and how many bytes this part of it decodes to."""
    if not isinstance(meta, dict):
        raise ValueError("a column without its description")
    starts = [_unsigned_field(meta, field) for field in (DICTIONARY_AT, DATA_AT) if meta.get(field)]
    at, values = min(starts, default=0), _unsigned_field(meta, VALUES)
    end = at + _unsigned_field(meta, PACKED)
    if not (starts or values == 0) or end > size:
        raise ValueError("a column outside its file")
    decoded = 0
    while at < end:
        length, count = _check_page(file, at, end, values)
        at, decoded = at + length, decoded + count
    path = meta.get(PATH)
    name = path[0].decode("utf-8", "replace") if isinstance(path, list) and path and isinstance(path[0], bytes) else ""
    return name, max(decoded, VALUE_BYTES * values)


def _check_page(file: IO[bytes], at: int, end: int, values: int) -> tuple[int, int]:
    """Return the size of a page with its header, and its decoded size."""
    page, length = _header(file, at, end)
    kind = next((kind for kind in KINDS if isinstance(page.get(kind), dict)), None)
    packed, unpacked = _unsigned_field(page, PACKED_SIZE), _unsigned_field(page, UNPACKED_SIZE)
    if length + packed > end - at:
        raise ValueError("a page longer than its column")
    if kind is not None and _unsigned_field(page[kind], 1) > (unpacked if kind == DICTIONARY else values):
        raise ValueError("a page of more values than its column")
    times = 1
    if kind in ENCODING and page[kind].get(ENCODING[kind]) == SHARED_PREFIXES:
        times = max(_unsigned_field(page[kind], 1), 1)
    return length + packed, unpacked * times


def _header(file: IO[bytes], at: int, end: int) -> tuple[dict[int, Any], int]:
    for size in HEADER_SIZES:
        file.seek(at)
        reader = _CompactReader(file.read(min(size, end - at)))
        try:
            return reader.structure(), reader.at
        except EOFError:
            continue
    raise ValueError("a page header without its end")


def _unsigned_field(structure: dict[int, Any], field: int) -> int:
    value = structure.get(field, 0)
    if type(value) is not int or value < 0:
        raise ValueError("a negative number, or not an integer")
    return value


class _CompactReader:
    """Reads Thrift's compact protocol: structures as dicts by field. Raises EOFError if the bytes end too soon."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def structure(self, depth: int = 0) -> dict[int, Any]:
        if depth > MAX_DEPTH:
            raise ValueError("structures nested too deep")
        fields: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            fields[field] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._unsigned())
        if kind in (9, 10):
            return self._list(depth)
        if kind == 12:
            return self.structure(depth + 1)
        raise ValueError("an unknown type")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = self._unsigned() if head >> 4 == 15 else head >> 4
        if count > len(self.raw):
            raise ValueError("a list longer than its bytes")
        return [self._value(head & 15, depth + 1) for _ in range(count)]

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _bytes(self, count: int) -> bytes:
        value = self.raw[self.at : self.at + count]
        if len(value) < count:
            raise EOFError
        self.at += count
        return value

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)


CONTINUATION = b"\xff\xff\xff\xff"
MAX_METADATA = 16 << 20  # bytes of one message's metadata
DICTIONARY_BATCH, RECORD_BATCH = 2, 3  # MessageHeader
# Numbers of fields in their tables.
KIND, HEADER, BODY_LENGTH = 1, 2, 3
DATA = 1
BUFFERS, COMPRESSION = 2, 3


def decoded_size(path: Path) -> int:
    """Return the size of a stream's buffers after decompression.

    Raises ValueError if the stream is damaged, OSError if it cannot be read.
    """
    total = 0
    end = path.stat().st_size
    with path.open("rb") as file:
        try:
            while metadata := _metadata(file):
                message = _FlatTable.root(metadata)
                begin, length = file.tell(), message.number(BODY_LENGTH, "q")
                if not 0 <= length <= end - begin:
                    raise ValueError("a message longer than its file")
                kind = message.number(KIND, "B")
                header = message.table(HEADER)
                batch = header.table(DATA) if header and kind == DICTIONARY_BATCH else header
                if batch and kind in (DICTIONARY_BATCH, RECORD_BATCH):
                    total += _buffers_size(file, batch, begin, length)
                file.seek(begin + length)
        except struct.error:
            raise ValueError("truncated metadata") from None
    return total


def _metadata(file: IO[bytes]) -> bytes:
    """Return the metadata of the next message; empty at the end of the stream."""
    head = file.read(4)
    if head == CONTINUATION:  # absent before Arrow 0.15
        head = file.read(4)
    length = int.from_bytes(head, "little")
    if length > MAX_METADATA:
        raise ValueError("metadata of more than 16 MB")
    return file.read(length)


def _buffers_size(file: IO[bytes], batch: _FlatTable, begin: int, body: int) -> int:
    total = 0
    packed = batch.at(COMPRESSION) is not None
    for at, length in batch.pairs(BUFFERS):
        if at < 0 or length < 0 or at + length > body:
            raise ValueError("a buffer outside its message")
        decoded = length
        if packed and length:
            file.seek(begin + at)
            (decoded,) = struct.unpack("<q", file.read(8))
            decoded = length if decoded == -1 else decoded  # -1: this buffer is not compressed
        if decoded < 0:
            raise ValueError("a buffer of negative size")
        total += decoded
    return total


class _FlatTable:
    """A FlatBuffers table at a place in its bytes. Raises struct.error if the bytes end too soon."""

    def __init__(self, raw: bytes, place: int) -> None:
        self.raw, self.place = raw, place

    @classmethod
    def root(cls, raw: bytes) -> _FlatTable:
        return cls(raw, _unpack("I", raw, 0))

    def at(self, field: int) -> int | None:
        """Return the place of a field; None if it is absent."""
        layout = self.place - _unpack("i", self.raw, self.place)
        if 4 + 2 * field >= _unpack("H", self.raw, layout):
            return None
        offset = _unpack("H", self.raw, layout + 4 + 2 * field)
        return self.place + offset if offset else None

    def number(self, field: int, kind: str) -> int:
        at = self.at(field)
        return 0 if at is None else _unpack(kind, self.raw, at)

    def table(self, field: int) -> _FlatTable | None:
        at = self.at(field)
        return None if at is None else _FlatTable(self.raw, at + _unpack("I", self.raw, at))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """Return a vector of structs of two 64-bit integers."""
        at = self.at(field)
        if at is None:
            return []
        at += _unpack("I", self.raw, at)
        count = _unpack("I", self.raw, at)
        return list(struct.iter_unpack("<qq", self.raw[at + 4 : at + 4 + 16 * count]))


def _unpack(kind: str, raw: bytes, at: int) -> int:
    if at < 0:
        raise struct.error("before the beginning")
    return int(struct.unpack_from(f"<{kind}", raw, at)[0])


EXPORT_AGAIN = "export it again: nsys export --type parquetdir REPORT.nsys-rep"
EXPORT_SQLITE = "export it as SQLite, which may have any text: nsys export --type sqlite REPORT.nsys-rep"
END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # end of an Arrow stream
MAX_ROWS_PER_BYTE, MIN_SUSPICIOUS_ROWS = 16, 100_000  # real tables stay far below
STDERR = 2

# Opens a table. Also returns the least number of bytes that each column decodes to; key None for all columns together.
OpenTable = Callable[[Path, DecodedSize], tuple[pl.LazyFrame, dict[str | None, int]]]


class NotUtf8Error(DamagedExportError):
    """A table has text in the encoding of a Windows in another language, as the name of its time zone."""


class TableFolderReader:
    """Reads folders that `nsys export --type parquetdir` or `--type arrowdir` writes."""

    kind = "folder of tables"

    def matches(self, path: Path, _head: bytes) -> bool:
        """Return whether a path is such a folder."""
        return table_suffix(path) is not None

    def check(self, path: Path) -> None:
        """Accept every folder: its tables are checked as they are read."""

    def read(self, path: Path) -> RawCapture:
        """Read the tables that the analysis needs. Raises DamagedExportError or ReportError."""
        suffix = table_suffix(path)
        problems: list[str] = []
        tables = {}
        size = DecodedSize(display_name(path))
        for name, wanted in raw.TABLES.items():
            file = path / f"{name}{suffix}"
            if file.is_file():
                tables[name] = _read_table(file, name, wanted, size, problems)
        version, schema = _stated_versions(path, suffix, size)
        return RawCapture(path.name, version, schema, tables, tuple(problems))

    @contextmanager
    def as_sqlite(self, path: Path) -> Iterator[Path]:
        """Yield a temporary SQLite export of all tables. Raises DamagedExportError or ReportError."""
        with private_folder(path) as folder:
            yield write_sqlite(display_name(path), _all_tables(path), folder)


def table_suffix(folder: Path) -> str | None:
    """Return the file suffix of a folder's tables; None if the path is not such a folder."""
    try:
        if not folder.is_dir():
            return None
        return next((suffix for suffix in OPEN_TABLE if (folder / f"{raw.STRINGS}{suffix}").is_file()), None)
    except OSError:
        return None


def _open_arrow(path: Path, size: DecodedSize) -> tuple[pl.LazyFrame, dict[str | None, int]]:
    """Read a complete stream. Without its end mark it was cut off, but polars would take the cut for its end."""
    with path.open("rb") as file:
        file.seek(-min(len(END_MARK), path.stat().st_size), os.SEEK_END)
        if file.read() != END_MARK:
            raise ValueError("no end mark")
    decoded = decoded_size(path)
    size.check(decoded)
    return pl.read_ipc_stream(path).lazy(), {None: decoded}


def _open_parquet(path: Path, _size: DecodedSize) -> tuple[pl.LazyFrame, dict[str | None, int]]:
    return pl.scan_parquet(path), {name: count for name, count in check_pages(path).items()}  # noqa: C416 - wider keys


OPEN_TABLE: dict[str, OpenTable] = {".parquet": _open_parquet, ".arrow": _open_arrow}


def _all_tables(folder: Path) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield all tables of an export with all their columns, unchanged."""
    size = DecodedSize(display_name(folder))
    for path in sorted(folder.glob(f"*{table_suffix(folder)}")):
        with suppress(NotUtf8Error) if path.stem in META_TABLES else nullcontext():
            yield path.stem, _read_columns(path, _read_columns(path, None, size).columns, size)


def _read_table(
    path: Path, table: str, wanted: raw.WantedColumns, size: DecodedSize, problems: list[str]
) -> pl.DataFrame:
    """Read a table's wanted columns as integers and texts; rows with a value of another type are counted."""
    present = _read_columns(path, None, size)
    columns = raw.wanted_columns(present.columns, table, problems, file=size.name, remedy=EXPORT_AGAIN)
    if columns is None:
        return pl.DataFrame()
    frame = _read_columns(path, columns, size)
    wrong = pl.Series([False]).new_from_index(0, len(frame))
    typed_columns = []
    for column in frame:
        typed = _as_text_or_null(column) if column.name in wanted.text else _as_integer(column)
        if column.name not in raw.TIMES:
            wrong |= typed.is_null() & column.is_not_null()
        typed_columns.append(typed)
    if count := int(wrong.sum()):
        problems.append(raw.problem_of_rows(table, count, "with a value of the wrong type, which is ignored"))
    return pl.DataFrame(typed_columns)


def _read_columns(path: Path, columns: list[str] | None, size: DecodedSize) -> pl.DataFrame:
    """Return some columns of a file; for None, an empty frame of all columns.

    The numbers of rows and bytes are checked first.
    """
    name = f"{size.name}: {display_name(path)}"
    try:
        with suppressed_stderr():
            lazy, decoded = OPEN_TABLE[path.suffix](path, size)
            if columns is None:
                return lazy.collect_schema().to_frame()
            rows = lazy.select(pl.len()).collect().item()
            if rows > MIN_SUSPICIOUS_ROWS + MAX_ROWS_PER_BYTE * path.stat().st_size:
                raise DamagedExportError(f"{name} claims {rows} rows, more than its size can hold; {EXPORT_AGAIN}")
            expected = sum(decoded.get(key, 0) for key in (None, *columns))
            size.check(expected)
            return _with_counted_texts(lazy.select(columns).collect(), size, expected)
    except OSError as error:
        if error.errno is None:
            raise DamagedExportError(f"{name} is cut off or damaged; {EXPORT_AGAIN}") from None
        raise ReportError(f"{name} cannot be read ({error.strerror}); check its permissions") from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, TypeError, EOFError) as error:
        if "UTF-8" in str(error):
            raise NotUtf8Error(f"{name} has text that is not UTF-8; {EXPORT_SQLITE}") from None
        raise DamagedExportError(f"{name} is cut off or damaged; {EXPORT_AGAIN}") from None


def _with_counted_texts(frame: pl.DataFrame, size: DecodedSize, expected: int) -> pl.DataFrame:
    """Return a frame with its categories as texts, and add its bytes to `size`: at least `expected`.

    Raises ReportError above the limits, before anything copies the text of each row.
    """
    frame = frame.with_columns(raw.as_text(column) for column in frame if column.dtype in raw.CATEGORICAL)
    texts = 0
    for column in frame:
        if column.dtype in (pl.String, pl.Binary):
            lengths = column.str.len_bytes() if column.dtype == pl.String else column.bin.size()
            longest = lengths.max()
            size.check_text(longest if isinstance(longest, int) else 0)
            texts += int(lengths.sum())
    size.add(max(expected, texts))
    return frame


def _as_integer(column: pl.Series) -> pl.Series:
    """Return integers as SQLite stores them, in 64 bits; others become null, or raw.NOT_A_TIME in a time column."""
    if column.dtype == pl.UInt64:
        return column.reinterpret(signed=True)
    if column.dtype.is_integer() or column.dtype in (pl.Boolean, pl.Null):
        return column.cast(pl.Int64)
    empty = pl.Series(column.name, [None], pl.Int64).new_from_index(0, len(column))
    if column.name not in raw.TIMES:
        return empty
    return empty.to_frame().select(pl.when(column.is_not_null()).then(raw.NOT_A_TIME).alias(column.name)).to_series()


def _as_text_or_null(column: pl.Series) -> pl.Series:
    if column.dtype in (pl.String, pl.Binary, *raw.CATEGORICAL):
        return raw.as_text(column)
    return pl.Series(column.name, [None], pl.String).new_from_index(0, len(column))


def _stated_versions(folder: Path, suffix: str | None, size: DecodedSize) -> tuple[str | None, str | None]:
    """Return the versions of nsys and of the export's schema; None if the export does not state them."""
    for table in META_TABLES:
        path = folder / f"{table}{suffix}"
        if path.is_file() and {"name", "value"} <= set(_read_columns(path, None, size).columns):
            with suppress(NotUtf8Error):
                stated = dict(_read_columns(path, ["name", "value"], size).rows())
                product, schema = (stated.get(f"EXPORT_{name}_VERSION") for name in ("PRODUCT", "SCHEMA"))
                return version_text(product), version_text(schema)
    return None, None


@contextmanager
def suppressed_stderr() -> Iterator[None]:
    """Hide the backtraces that polars prints when damaged data makes it panic.

    The context holds back standard error, and writes it at the end unless an exception was raised.
    """
    with tempfile.TemporaryFile() as kept:
        try:
            before = os.dup(STDERR)
        except OSError:  # standard error is closed
            yield
            return
        _flush_stderr()
        os.dup2(kept.fileno(), STDERR)
        try:
            yield
            _flush_stderr()
        except BaseException:
            kept.truncate(0)
            raise
        finally:
            os.dup2(before, STDERR)
            os.close(before)
            kept.seek(0)
            while chunk := kept.read(1 << 16):
                os.write(STDERR, chunk)


def _flush_stderr() -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
