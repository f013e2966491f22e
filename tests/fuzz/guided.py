"""Targets of the coverage-guided fuzzer. Each compares a fast reader with a slow one on the same bytes.

A target raises AssertionError if they differ. scripts/fuzz-guided runs them, tests/fuzz/test_guided.py their seeds.
"""

from __future__ import annotations

import json
import re
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest import mock

from tests.fuzz.invariants import parsed
from tests.read.complete_tables import complete_tables
from traceview.errors import ReportError
from traceview.read.kineto.pieces import SEPARATOR, NotJsonError, Pieces
from traceview.read.raw import KERNEL, MEMSET, STRINGS, TABLES, RawCapture
from traceview.read.sqlite import decoder
from traceview.read.sqlite.reader import read_sqlite

Target = Callable[[bytes, Path], None]
NEVER = 1 << 60


def decoded_pages(data: bytes, folder: Path) -> None:
    """Check that the page decoder gives the tables that SQLite reads."""
    path = folder / "fuzzed.sqlite"
    path.write_bytes(data)
    with mock.patch.object(decoder, "PAGES_PER_CHUNK", 3), mock.patch.object(decoder, "MIN_TABLE_BYTES", 0):
        fast = _read(path)
    with mock.patch.object(decoder, "MIN_TABLE_BYTES", NEVER):
        slow = _read(path)
    assert fast is None or slow is not None, "what SQLite refuses was decoded"
    if fast is None or slow is None:
        return
    assert fast.tables.keys() == slow.tables.keys()
    decoded = complete_tables(fast)
    for table, frame in complete_tables(slow).items():
        assert decoded[table].equals(frame), f"{table}: {decoded[table]} instead of {frame}"


def _read(path: Path) -> RawCapture | None:
    try:
        return read_sqlite(path)
    except ReportError as error:
        assert "\n" not in str(error) and path.name in str(error), str(error)
        return None


def pieces(data: bytes, _folder: Path) -> None:
    """Check that the pieces of a trace are its events for any block size, and that invalid JSON is refused."""
    cutter = Pieces(BytesIO(data[1:]), 1 + data[0]) if data else Pieces(BytesIO(b""))
    try:
        result = [_strict(item) for piece in cutter for item in piece.split(bytes([SEPARATOR]))]
        rest = _strict(cutter.document)
    except (NotJsonError, ValueError, RecursionError):
        return
    try:
        whole = _strict(data[1:])
    except ValueError:
        whole = _strict(re.sub(rb",(\s*\])", rb"\1", data[1:]))  # the only accepted input that is not JSON
    assert whole.pop("traceEvents") == result
    assert rest.pop("traceEvents") == []
    assert rest == whole


def is_refused_rightly(data: bytes, _folder: Path) -> None:
    """Check that a valid trace is accepted if its events are objects that are not nested too deeply."""
    try:
        whole = _strict(data[1:])
        events = whole["traceEvents"]
        assert isinstance(whole, dict) and isinstance(events, list) and all(isinstance(item, dict) for item in events)
    except (ValueError, RecursionError, KeyError, TypeError, AssertionError):
        return
    if data.count(b"[") + data.count(b"{") > 60 or b'"traceEvents"' not in data or bytes([SEPARATOR]) in data:
        return
    cutter = Pieces(BytesIO(data[1:]), 1 + data[0])
    result = [_strict(item) for piece in cutter for item in piece.split(bytes([SEPARATOR]))]
    assert result == events


def _strict(text: bytes) -> Any:
    return parsed(text.decode("utf-8"))


TARGETS: Mapping[str, Target] = {"pages": decoded_pages, "pieces": pieces, "whole": is_refused_rightly}


def seeds(target: str) -> list[bytes]:
    """Return a few small valid inputs of a target."""
    if target == "pages":
        with tempfile.TemporaryDirectory() as folder:
            return [_database(Path(folder) / f"{number}.sqlite", number) for number in (1, 12, 90)]
    texts = [json.dumps(_TRACE), json.dumps(_TRACE, separators=(",", ":")), json.dumps(_TRACE, indent=1)]
    return [bytes([block]) + text.encode() for block, text in zip((255, 40, 3), texts, strict=True)]


def _database(path: Path, rows: int) -> bytes:
    """Return an export of a few pages of 512 bytes: numbers of every width, nulls, several headers."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA page_size = 512")
    with connection:
        for table in (KERNEL, MEMSET):
            columns = TABLES[table].columns
            connection.execute(f"CREATE TABLE {table} ({', '.join(f'{item} INTEGER' for item in columns)})")
            for row in range(rows):
                values = [(row % 5 - 1) << (row * (place + 1) % 61) for place in range(len(columns))]
                values[-1:] = [None] if row % 4 == 3 else []
                marks = ", ".join("?" * len(columns))
                connection.execute(f"INSERT INTO {table} VALUES ({marks})", [*values, 0][: len(columns)])
        connection.execute(f"CREATE TABLE {STRINGS} (id INTEGER, value TEXT)")
        connection.execute(f"INSERT INTO {STRINGS} VALUES (1, 'a'), (2, 'b')")
    connection.close()
    return path.read_bytes()


_TRACE = {
    "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU {[\\\""}],
    "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "f\\", "ts": 1.5, "dur": 2, "args": {"stream": 7, "grid": [1, 1]}},
        {"ph": "X", "cat": "cuda_runtime", "name": "\"}]", "ts": 1, "dur": 1, "args": {}}, {},
    ],
    "traceName": "x \"traceEvents\": [",
}  # fmt: skip
