"""Notes name a view, a virtual table or another letter case in place of a table; hand-made exports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build_export import Call, Copy, Kernel, Memset, Nvtx, build_export
from traceview.errors import DamagedExportError
from traceview.read import raw
from traceview.read.sqlite.reader import read_sqlite

PLACED = [raw.KERNEL, raw.MEMCPY, raw.RUNTIME, raw.MEMSET, raw.NVTX]


def write_export(path: Path, statements: list[str]) -> Path:
    return build_export(
        path, kernels=[Kernel()], copies=[Copy()], memsets=[Memset()], api=[Call()], nvtx=[Nvtx(text="range")],
        statements=statements,
    )  # fmt: skip


@pytest.mark.parametrize("table", PLACED)
def test_note_for_views(tmp_path: Path, table: str) -> None:
    statements = [f"ALTER TABLE {table} RENAME TO moved", f"CREATE VIEW {table} AS SELECT * FROM moved"]
    capture = read_sqlite(write_export(tmp_path / "made.sqlite", statements))
    assert table not in capture.tables
    note = f"{table} is a view, not a table: its rows are left out"
    assert [line for line in capture.problems if line.startswith(note)]


@pytest.mark.parametrize("table", PLACED)
def test_note_for_virtual_tables(tmp_path: Path, table: str) -> None:
    statements = [f"DROP TABLE {table}", f"CREATE VIRTUAL TABLE {table} USING fts5(start)"]
    capture = read_sqlite(write_export(tmp_path / "made.sqlite", statements))
    assert table not in capture.tables
    assert [line for line in capture.problems if line.startswith(f"{table} is a virtual table, not a table")]


@pytest.mark.parametrize("table", PLACED)
def test_note_for_other_letter_case(tmp_path: Path, table: str) -> None:
    statements = [f"ALTER TABLE {table} RENAME TO moved", f"ALTER TABLE moved RENAME TO {table.lower()}"]
    capture = read_sqlite(write_export(tmp_path / "made.sqlite", statements))
    assert table not in capture.tables
    note = f"{table.lower()} differs from {table} in letter case: its rows are left out"
    assert [line for line in capture.problems if line.startswith(note)]


def test_no_note_for_valid_exports(tmp_path: Path) -> None:
    problems = read_sqlite(write_export(tmp_path / "made.sqlite", ["CREATE VIEW other AS SELECT 1"])).problems
    assert [line for line in problems if "gridX" not in line] == []  # kernels that are made by hand have no shape


def test_view_in_place_of_string_ids(tmp_path: Path) -> None:
    statements = ["ALTER TABLE StringIds RENAME TO moved", "CREATE VIEW StringIds AS SELECT * FROM moved"]
    with pytest.raises(DamagedExportError, match="no StringIds"):
        read_sqlite(write_export(tmp_path / "made.sqlite", statements))
