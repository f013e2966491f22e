"""An export as a newer nsys may write it, made by hand: no real export of nsys 2026.3 or newer is at hand.

The release notes of nsys 2025.6 say that rows may come in any order. The table and the columns with names that
traceview does not know stand for those that newer versions add.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests import variants
from tests.captures import sample
from traceview import analyze
from traceview.captures import record as machine
from traceview.report.analysis import document

EVENTS = ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION")


def newer_export(source: Path, folder: Path) -> Path:
    """Return a copy of an export with its rows in another order, and with an unknown table and unknown columns."""
    with sqlite3.connect(source) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    statements = ["CREATE TABLE NVTX_COUNTERS_MADE_BY_HAND (timestamp INT, counterId INT, value REAL)"]
    statements += ["INSERT INTO NVTX_COUNTERS_MADE_BY_HAND VALUES (1, 2, 3.5)"]
    for table in sorted(tables & {"NVTX_EVENTS", *(f"CUPTI_ACTIVITY_KIND_{name}" for name in EVENTS)}):
        statements += [
            f"CREATE TABLE moved AS SELECT *, 7 AS columnMadeByHand FROM {table} ORDER BY (rowid * 7919) % 10007",
            f"DROP TABLE {table}",
            f"ALTER TABLE moved RENAME TO {table}",
        ]
    statements.append("UPDATE META_DATA_EXPORT SET value = '3.99.0' WHERE name = 'EXPORT_SCHEMA_VERSION'")
    return variants.variant(source, folder, *statements)


@pytest.mark.parametrize("name", ["dual", "ddp2", "cudagraph"])
def test_figures_are_equal(tmp_path: Path, name: str) -> None:
    source = sample(f"{name}.sqlite")
    newer, known = document(analyze(newer_export(source, tmp_path))), document(analyze(source))
    assert newer.pop("report") != known.pop("report")
    assert newer == known


@pytest.mark.parametrize(("version", "status"), [((2026, 2, 1), machine.OK), ((2026, 3, 0), machine.WARNING)])
def test_doctor_says_which_version_is_known(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], status: str
) -> None:
    monkeypatch.setattr(machine, "installed_nsys", lambda: "nsys")
    monkeypatch.setattr(machine, "version_of_nsys", lambda _: version)
    check = next(machine.checks())
    assert (check.name, check.status) == ("nsys", status)
    assert check.text.endswith("exports up to 2026.2 are known") and bool(check.remedy) == (status == machine.WARNING)
