"""Small hand-made databases for the page decoder: like exports, and with all values that SQLite can store."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

Value = Callable[[random.Random, int], object]
Change = Callable[[sqlite3.Connection, random.Random, str], None]

PAGE_SIZES = (512, 512, 512, 1024, 1024, 2048, 4096, 4096, 8192, 65536)
ROWS = (0, 1, 4, 20, 60, 150, 300, 300, 300, 500, 500, 900, 900)
WIDTHS = (0, 7, 8, 15, 16, 23, 24, 31, 32, 47, 48, 62, 63)  # bits of a number: where the serial type changes
WORDS = (*("", "a", "gemm", "iteration 12", "é" * 9) * 40, "x" * 70)


def any_integer(chance: random.Random, _row: int) -> int:
    """Return an integer of any width, often next to a change of width."""
    return (chance.choice((1, -1)) * (1 << chance.choice(WIDTHS)) + chance.choice((-1, 0, 1))) % (1 << 63)


NUMBERS: tuple[Value, ...] = (
    lambda chance, row: 1_000_000 * row + chance.randrange(900_000),  # a time
    lambda chance, row: (1 << 40) + 7_000 * row,
    lambda chance, row: row,
    lambda chance, row: 7,
    lambda chance, row: chance.randrange(2),
    lambda chance, row: chance.choice((None, 0, 1, 70_000)),
    lambda chance, row: None if chance.random() < 0.1 else row % 300,
    lambda chance, row: -any_integer(chance, row) - 1,
    any_integer,
    lambda chance, row: any_integer(chance, row) if chance.random() < 0.02 else 5,
)
OTHERS: tuple[Value, ...] = (
    lambda chance, row: chance.choice(WORDS),
    lambda chance, row: None if row % 3 else chance.choice(WORDS),
    lambda chance, row: chance.random() * row,
    lambda chance, row: bytes(row % 40),
    lambda chance, row: "y" * 6_000 if chance.random() < 0.001 else None,  # overflow pages
    lambda chance, row: chance.choice((None, 3, 2.5, "text", b"blob", 1 << 50)),
)
NUMBER_TYPES = (*["INTEGER"] * 3, "INT", "BIGINT", "INT NOT NULL ON CONFLICT IGNORE", "", "NUMERIC", "BLOB")
OTHER_TYPES = ("TEXT", "TEXT", "", "REAL", "BLOB", "VARCHAR(20)", "INTEGER")


def make_database(path: Path, chance: random.Random) -> None:
    """Write a database with one to three tables; columns of numbers are called `n0`, `n1`, ..., the others `x0`, ..."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA page_size = {chance.choice(PAGE_SIZES)}")
        connection.execute(f"PRAGMA auto_vacuum = {chance.choice((0, 0, 0, 1, 2))}")
        connection.execute(f"PRAGMA encoding = '{'UTF-16le' if chance.random() < 0.01 else 'UTF-8'}'")
        connection.execute(f"PRAGMA journal_mode = {'WAL' if chance.random() < 0.01 else 'OFF'}")
        for number in range(chance.choice((1, 1, 2, 3))):
            _make_table(connection, chance, f"t{number}")
        if chance.random() < 0.2:
            connection.execute("VACUUM")
    finally:
        connection.close()


def _make_table(connection: sqlite3.Connection, chance: random.Random, table: str) -> None:
    columns = [(f"n{at}", chance.choice(NUMBER_TYPES), chance.choice(NUMBERS)) for at in range(chance.randint(1, 9))]
    for at in range(chance.choice((0, 1, 1, 2, 4))):
        column = (f"x{at}", chance.choice(OTHER_TYPES), chance.choice(OTHERS))
        columns.insert(chance.choice((len(columns), chance.randint(0, len(columns)))), column)
    kinds, suffix = [kind for _, kind, _ in columns], ""
    strange = chance.random()
    if strange < 0.02:
        kinds[0] += " PRIMARY KEY"
    elif strange < 0.04:
        kinds[-1], suffix = "INTEGER PRIMARY KEY", chance.choice(("", " WITHOUT ROWID"))
    elif strange < 0.06:
        kinds[-1] += " UNIQUE"
    names = [f"{name} {kind}" for (name, _, _), kind in zip(columns, kinds, strict=True)]
    if 0.06 < strange < 0.08:
        names.insert(chance.randint(0, len(names)), f"g AS ({columns[0][0]}) {chance.choice(('STORED', 'VIRTUAL'))}")
    connection.execute(f"CREATE TABLE {table} ({', '.join(names)}){suffix}")
    _insert(connection, chance, table, columns)
    for change in chance.choices(CHANGES, k=chance.choice((0, 0, 0, 1, 2))):
        try:
            change(connection, chance, table)
        except sqlite3.Error:
            continue


def _insert(
    connection: sqlite3.Connection, chance: random.Random, table: str, columns: list[tuple[str, str, Value]]
) -> None:
    count = chance.choice(ROWS)
    names = ", ".join(name for name, _, _ in columns)
    rows = [[value(chance, row) for _, _, value in columns] for row in range(count)]
    first = chance.choice((*[1] * 24, 1 << 20, 1 << 30, -5, (1 << 62) - 3))
    numbered = [[first + at, *row] for at, row in enumerate(rows)]
    marks = ", ".join("?" * len(columns))
    connection.execute("BEGIN")
    try:
        connection.executemany(f"INSERT OR IGNORE INTO {table} (rowid, {names}) VALUES (?, {marks})", numbered)
    except sqlite3.Error:  # WITHOUT ROWID, or a key of another type: some rows
        with suppress(sqlite3.Error):
            connection.executemany(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", rows)
    connection.execute("COMMIT")


def _add_column(connection: sqlite3.Connection, chance: random.Random, table: str) -> None:
    default = chance.choice(("", " DEFAULT 7", " DEFAULT 'seven'", " NOT NULL DEFAULT 1"))
    connection.execute(f"ALTER TABLE {table} ADD COLUMN n{chance.randint(20, 29)} INTEGER{default}")
    connection.execute(f"INSERT INTO {table} SELECT * FROM {table} LIMIT 50")


def _run(statement: str) -> Change:
    def change(connection: sqlite3.Connection, _chance: random.Random, table: str) -> None:
        connection.execute(statement.format(table))

    return change


CHANGES: tuple[Change, ...] = (
    _add_column,
    _run("DELETE FROM {0} WHERE rowid % 7 = 3"),
    _run("DELETE FROM {0} WHERE rowid > 30 AND rowid < 90"),
    _run("UPDATE {0} SET n0 = n0 * 1000 WHERE rowid % 5 = 1"),
    _run("ALTER TABLE {0} DROP COLUMN n1"),
    _run("ALTER TABLE {0} RENAME COLUMN n0 TO n90"),
    _run('ALTER TABLE {0} RENAME TO "{0} b"'),
    _run("CREATE INDEX i{0} ON {0} (n0)"),
    _run("CREATE INDEX i{0} ON {0} (abs(n0), n1)"),
    _run("CREATE INDEX i{0} ON {0} (n0) WHERE n0 > 5"),
)
