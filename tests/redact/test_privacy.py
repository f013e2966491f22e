"""Secrets planted in every column and every text of a capture: the copy has them only in names that it keeps."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.captures import ALL, sample, shared
from tests.redact.figures import figures, numbers, texts, values
from traceview.captures.redact import COLUMNS, redact
from traceview.read.formats import read_capture

EVERY_TABLE = ["mpi/ring.sqlite", "openacc/heat_as_2024.2.sqlite"]
CAPTURES = [
    name for name in ALL if name not in ("h200_serial.sqlite", "h200_quad.sqlite")
]  # h200_dual has their tables
FAR = 4_611_686_018_427_000_000  # planted numbers are at least this large
HIDING: list[Literal["hash", "drop"]] = ["hash", "drop"]


def token(number: int) -> str:
    return f"auth_ghp_{number:04d}" + "aB3" * 10 + f"{number:04d}Zz"


def has_token(path: Path) -> bool:
    """Return whether a part of a token is in the bytes or the texts of a file."""
    content, all_texts = path.read_bytes(), texts(path)
    parts = ("ghp", "aB3aB3")
    return any(
        part in all_texts or any(part.encode(form) in content for form in ("utf-8", "utf-16-le", "utf-16-be"))
        for part in parts
    )


def planted(name: str, folder: Path) -> Path:
    path = folder / "planted.sqlite"
    shutil.copy(sample(name) if name in EVERY_TABLE else shared(name), path)
    path.chmod(0o600)
    return path


def plant_rows(path: Path, make: Callable[[int], object]) -> dict[tuple[str, str], object]:
    """Add a row to every table with a distinct value in every column, and return the values."""
    added: dict[tuple[str, str], object] = {}
    with closing(sqlite3.connect(path)) as export, export:
        for (table,) in export.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = export.execute("SELECT name, pk FROM pragma_table_info(?)", (table,)).fetchall()
            single_key = sum(map(bool, (key for _, key in columns))) == 1  # SQLite numbers such rows itself
            keys = {name for name, key in columns if key and single_key}
            named = {name: make(len(added) + at) for at, (name, _) in enumerate(columns) if name not in keys}
            added.update({(table, name): value for name, value in named.items()})
            listed, holes = ", ".join(f'"{name}"' for name in named), ", ".join("?" * len(named))
            export.execute(f'INSERT INTO "{table}" ({listed}) VALUES ({holes})', tuple(named.values()))
    return added


def replace_texts(path: Path) -> int:
    """Replace every text of every table by a token, and return their number."""
    count = 0

    def next_token(_kind: str) -> str:
        nonlocal count
        count += 1
        return token(count)

    with closing(sqlite3.connect(path)) as export, export:
        export.text_factory = lambda text: text.decode("utf-8", "replace")
        export.create_function("token", 1, next_token)  # not of the text, which may not be UTF-8
        tables = export.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            for (column,) in export.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall():
                condition = f"typeof(\"{column}\") = 'text'"
                export.execute(f'UPDATE "{table}" SET "{column}" = token(typeof("{column}")) WHERE {condition}')
    return count


@pytest.mark.parametrize("name", [*EVERY_TABLE, *CAPTURES])
def test_planted_rows_leave_no_text(name: str, tmp_path: Path) -> None:
    path, out = planted(name, tmp_path), tmp_path / "out.sqlite"
    added = plant_rows(path, token)
    plant_rows(path, lambda number: token(5000 + number).encode())
    far = plant_rows(path, lambda number: FAR + number)
    redact(path, out)
    assert len(added) > 100
    # A name of a stream has no other condition than its table.
    left = {(table, column) for table, column, value in values(out) if isinstance(value, str) and "ghp_" in value}
    assert left <= {("TARGET_INFO_NVTX_CUDA_STREAM", "name")}
    left = {(table, column) for table, column, value in values(out) if isinstance(value, (int, float)) and value >= FAR}
    assert left <= {(table, column) for table, column in far if column in COLUMNS.get(table, ())}
    assert numbers(figures(out)) == numbers(figures(path))


@pytest.mark.parametrize("names", HIDING)
@pytest.mark.parametrize("name", [*EVERY_TABLE, *CAPTURES])
def test_hidden_names_leave_no_text(name: str, names: Literal["hash", "drop"], tmp_path: Path) -> None:
    """Every text of the export is a token."""
    path, out = planted(name, tmp_path), tmp_path / "out.sqlite"
    plant_rows(path, token)
    assert replace_texts(path) > 100 and has_token(path)
    redact(path, out, names=names)
    assert not has_token(out)


def test_kept_names_are_those_of_ranges_threads_kernels_and_calls(tmp_path: Path) -> None:
    path, out = planted("h200_ddp2.sqlite", tmp_path), tmp_path / "out.sqlite"
    replace_texts(path)
    done = redact(path, out)
    left = {each.kind for each in done.texts if "ghp_" in each.text}
    assert left == {"range", "kernel", "call", "thread or process"}


def test_texts_in_utf16_are_hidden(tmp_path: Path) -> None:
    path, wide = planted("h200_dual.sqlite", tmp_path), tmp_path / "wide.sqlite"
    replace_texts(path)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(wide)) as target, target:
        target.execute("PRAGMA encoding = 'UTF-16le'")
        for table, sql in source.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"):
            target.execute(sql)
            rows = source.execute(f'SELECT * FROM "{table}"').fetchall()
            if rows:
                target.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(rows[0]))})', rows)
    redact(wide, tmp_path / "out.sqlite", names="hash")
    assert has_token(wide) and not has_token(tmp_path / "out.sqlite")


def test_free_pages_of_the_capture_are_not_copied(tmp_path: Path) -> None:
    path, out = planted("h200_dual.sqlite", tmp_path), tmp_path / "out.sqlite"
    with closing(sqlite3.connect(path)) as export, export:
        export.executemany("INSERT INTO StringIds VALUES (?, ?)", [(900_000 + at, token(at)) for at in range(2000)])
    with closing(sqlite3.connect(path)) as export, export:
        export.execute("PRAGMA secure_delete = OFF")
        export.execute("DELETE FROM StringIds WHERE id >= 900000")
    assert b"aB3aB3" in path.read_bytes()  # a free page has what was deleted
    redact(path, out)
    assert not has_token(out)
    with closing(sqlite3.connect(out)) as copy:
        assert copy.execute("PRAGMA freelist_count").fetchone() == (0,)


def with_tokens(value: Any) -> Any:
    """Return JSON of a trace with a token in each text that traceview does not need to read it."""
    fixed = ("ph", "cat", "ts", "dur", "pid", "tid", "id")
    if isinstance(value, dict):
        return {key: each if key in fixed else with_tokens(each) for key, each in value.items()}
    if isinstance(value, list):
        return [with_tokens(each) for each in value]
    metadata = ("process_name", "thread_name", "process_labels", "process_sort_index", "thread_sort_index")
    return f"{value} {token(7)}" if isinstance(value, str) and value not in metadata else value


@pytest.mark.parametrize("names", HIDING)
def test_traces_of_torch_profiler(names: Literal["hash", "drop"], tmp_path: Path) -> None:
    path, out = tmp_path / "trace.json", tmp_path / "out.sqlite"
    trace = json.loads(gzip.decompress(sample("torch_profiler/graph.json.gz").read_bytes()))
    path.write_text(json.dumps(with_tokens(trace)))
    assert any("ghp_" in text for text in read_capture(path).tables["StringIds"]["value"])
    redact(path, out, names=names)
    assert not has_token(out)
