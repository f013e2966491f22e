"""Compare the page decoder with SQLite on the same bytes: equal rows, and no rows that SQLite refuses."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tests.fuzz.made_databases import make_database
from tests.fuzz.page_damage import damage_pages
from tests.read.sqlite.decoded import read_integers
from traceview.errors import ReportError
from traceview.read.sqlite import decoder
from traceview.read.sqlite.database import open_export

CASES_PER_DATABASE = 8  # the first one is undamaged
OTHER = "other rows than before the damage"
Rows = list[tuple[Any, ...]]


@dataclass
class Totals:
    """Counts of results of cases and tables, and the failed cases."""

    counts: Counter[str] = field(default_factory=Counter)
    differences: list[dict[str, object]] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        """Add the counts of another run."""
        self.counts += other.counts
        self.differences += other.differences


def run_cases(seed: int, cases: Iterable[int], folder: Path) -> Totals:
    """Run cases and write their databases to `folder`. A case depends only on its number and the seed."""
    totals = Totals()
    path, base, sound = folder / "case.sqlite", -1, Sound(b"", {}, {})
    for case in cases:
        if case // CASES_PER_DATABASE != base:
            base = case // CASES_PER_DATABASE
            sound = make_sound(seed, base, folder / "sound.sqlite")
        chance, kinds, data = random.Random(f"{seed} case {case}"), ["none"], sound.data
        if case % CASES_PER_DATABASE:
            data, kinds = damage_pages(data, chance)
        path.write_bytes(data)
        results = list(compare_tables(path, sound, chance.choice((1, 3, 256))))
        totals.counts["cases"] += 1
        totals.counts["damaged cases"] += kinds != ["none"]
        for name in {result for result, _, _ in results}:
            totals.counts[f"cases with a table {name}"] += 1
        if kinds != ["none"]:
            totals.counts["damaged cases with a table decoded"] += any(result == "decoded" for result, _, _ in results)
            totals.counts["damaged cases with other rows decoded"] += any(detail == OTHER for _, _, detail in results)
        for result, table, detail in results:
            totals.counts[f"tables {result}"] += 1
            if result == "different":
                totals.differences.append({"case": case, "damage": kinds, "table": table, "difference": detail})
    return totals


@dataclass(frozen=True)
class Sound:
    """An undamaged database, the compared columns of each table, and their rows."""

    data: bytes
    columns: dict[str, list[str]]
    rows: dict[str, Rows]


def make_sound(seed: int, base: int, path: Path) -> Sound:
    """Create the database that eight cases start from."""
    chance = random.Random(f"{seed} database {base}")
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    make_database(path, chance)
    columns, rows = {}, {}
    with open_export(path) as export:
        for table in export.tables:
            every = export.columns(table)
            numbers = [name for name in every if name.startswith("n")] if chance.random() < 0.95 else every
            columns[table] = chance.sample(numbers, chance.randint(1, len(numbers))) if numbers else every
            rows[table] = select(export.connection, table, columns[table])
    return Sound(path.read_bytes(), columns, rows)


def compare_tables(path: Path, sound: Sound, pages_at_once: int) -> Iterator[tuple[str, str, str]]:
    """Yield for each table a result, its name and a detail.

    The result is "decoded", "left" to SQLite, "empty", "refused" by SQLite and not decoded, or "different".
    """
    with (
        mock.patch.object(decoder, "MIN_TABLE_BYTES", 0),
        mock.patch.object(decoder, "PAGES_PER_CHUNK", pages_at_once),
    ):
        try:
            with open_export(path) as export:
                for table in export.tables:
                    present = export.columns(table)
                    wanted = [name for name in sound.columns.get(table, present) if name in present]
                    yield compare(path, export.connection, table, wanted, sound.rows.get(table))
        except ReportError:
            yield "refused", "", "the file"


def select(connection: sqlite3.Connection, table: str, columns: list[str]) -> Rows:
    """Return the rows that SQLite reads, in the order of the b-tree. Raises sqlite3.Error."""
    names = ", ".join('"{}"'.format(name.replace('"', '""')) for name in columns) or "1"
    quoted = table.replace('"', '""')
    return connection.execute(f'SELECT {names} FROM "{quoted}" NOT INDEXED').fetchall()


def compare(
    path: Path, connection: sqlite3.Connection, table: str, columns: list[str], sound: Rows | None
) -> tuple[str, str, str]:
    """Decode a table and read it with SQLite; `sound` is its rows before the damage."""
    # If the number of columns is odd, decode the second half as groups of equal rows.
    grouped = columns[(len(columns) + 1) // 2 :] if len(columns) % 2 else []
    decoded = read_integers(path, connection, table, columns, grouped)
    try:
        expected = select(connection, table, columns)
    except (sqlite3.Error, ValueError, OverflowError) as error:
        return ("refused", table, "") if decoded is None else ("different", table, f"SQLite refuses it: {error}")
    if decoded is None:
        return ("left" if expected else "empty"), table, ""
    rows: Rows = decoded.rows()
    if rows == expected:
        return "decoded", table, "" if rows == sound else OTHER
    if len(rows) != len(expected):
        return "different", table, f"{len(rows)} rows instead of {len(expected)}"
    at = next(at for at, row in enumerate(rows) if row != expected[at])
    return "different", table, f"row {at}: {rows[at]} instead of {expected[at]}"
