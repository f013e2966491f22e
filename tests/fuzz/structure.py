"""Changes to an export that keep it a valid database: odd rows, columns and tables."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

Change = Callable[[sqlite3.Connection, random.Random], None]

BIG = 1 << 63
NUMBERS = (0, 1, -1, 7, 255, 2**31 - 1, 2**31, 2**32, 2**48, 2**53 + 1, 2**60, 2**60 + 1, BIG - 1, -BIG, -(2**60))
TEXTS = (
    "", " ", "nccl", "ncclDevKernel_", "iteration 1", "iteration -9999999999999999999999", "</script><img src=x>",
    "a\nb", "\x1b[31m", "\u202eabc", "é" * 50, "😀", "x" * 20_000, "%s{}$&", "'\"`", "=1+1", "cudaFree_v1_v2_ptsz",
    "(" * 300, "9" * 5000, "None", "nan", "\x00z",
)  # fmt: skip
OTHER = (None, 1.5, -0.0, 1e300, float("inf"), b"", b"\xff\xfe\x00", b"x" * 5000)
EVENT = "CUPTI_ACTIVITY_KIND_"


def value(chance: random.Random) -> object:
    """Return a value that SQLite can store."""
    return chance.choice(chance.choice((NUMBERS, NUMBERS, TEXTS, OTHER)))


def tables(connection: sqlite3.Connection) -> list[str]:
    """Return the tables, those with events three times."""
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    names = sorted(str(name) for (name,) in rows)
    return names + 2 * [item for item in names if item.startswith(EVENT) or item in ("NVTX_EVENTS", "StringIds")]


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in connection.execute(f'PRAGMA table_info("{table}")')]


def _some(chance: random.Random) -> str:
    """Return an SQL condition that selects rows."""
    return chance.choice(("1", f"rowid = (SELECT min(rowid) + {chance.randrange(20)} FROM {{0}})", "rowid % 7 = 3"))


def drop_table(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Drop a table."""
    connection.execute(f'DROP TABLE "{chance.choice(tables(connection))}"')


def empty_table(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Delete all rows of a table."""
    connection.execute(f'DELETE FROM "{chance.choice(tables(connection))}"')


def drop_column(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Drop or rename a column."""
    table = chance.choice(tables(connection))
    column = chance.choice(_columns(connection, table))
    verb = "DROP COLUMN {}" if chance.random() < 0.7 else "RENAME COLUMN {} TO strange"
    connection.execute(f'ALTER TABLE "{table}" {verb.format(chr(34) + column + chr(34))}')


def add_column(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Add an unknown column, stored or computed."""
    table = chance.choice(tables(connection))
    name = chance.choice(('"new"', '"a b"', '"x""y"', '"rowid"', '"END "', '"été"', '"typeof"'))
    kind = chance.choice(("INTEGER", "TEXT", "REAL DEFAULT 1.5", "BLOB", "", "INTEGER AS (1 + 1)", "AS (zeroblob(9))"))
    connection.execute(f'ALTER TABLE "{table}" ADD COLUMN {name} {kind}')


def set_values(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Change the values of a column in some rows."""
    table = chance.choice(tables(connection))
    column = chance.choice(_columns(connection, table))
    query = f'UPDATE OR IGNORE "{table}" SET "{column}" = ? WHERE {_some(chance).format(table)}'
    connection.execute(query, (value(chance),))


def shift_values(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Shift integers, or set them to those of another row."""
    table = chance.choice(tables(connection))
    column = chance.choice(_columns(connection, table))
    change = chance.choice(
        (f'"{column}" + {chance.choice(NUMBERS[:11])}', f'-"{column}"', f'"{column}" & 3', f'"{column}" * 1.0',
         f'(SELECT max("{column}") FROM "{table}")', f'CAST("{column}" AS TEXT)', "abs(random() % 100)")
    )  # fmt: skip
    connection.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = {change} WHERE {_some(chance).format(table)}')


def duplicate_rows(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Duplicate rows."""
    table = chance.choice(tables(connection))
    connection.execute(f'INSERT OR IGNORE INTO "{table}" SELECT * FROM "{table}" WHERE {_some(chance).format(table)}')


def delete_rows(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Delete rows."""
    table = chance.choice(tables(connection))
    connection.execute(f'DELETE FROM "{table}" WHERE {_some(chance).format(table)}')


def retype_table(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Store the rows in another kind of table: without types or row ids, strict, a view, virtual, indexed."""
    table = chance.choice(tables(connection))
    columns = ", ".join(f'"{name}"' for name in _columns(connection, table))
    first = columns.split(", ")[0]
    connection.execute(f'ALTER TABLE "{table}" RENAME TO "moved {table}"')
    made = chance.choice(
        (f'CREATE TABLE "{table}" ({columns})', f'CREATE VIEW "{table}" AS SELECT * FROM "moved {table}"',
         f'CREATE TABLE "{table}" ({columns}, PRIMARY KEY ({columns})) WITHOUT ROWID',
         f'CREATE TABLE "{table}" ({columns.replace(first, first + " REAL", 1)})',
         f'CREATE TABLE "{table}" ({columns.replace(first, first + " TEXT COLLATE NOCASE", 1)})')
    )  # fmt: skip
    connection.execute(made)
    if "VIEW" not in made:
        connection.execute(f'INSERT OR IGNORE INTO "{table}" SELECT * FROM "moved {table}"')


def add_things(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Add a trigger, an index or a table with an unusual name."""
    table = chance.choice(tables(connection))
    column = chance.choice(_columns(connection, table))
    connection.execute(
        chance.choice(
            (f'CREATE TRIGGER t BEFORE INSERT ON "{table}" BEGIN DELETE FROM "{table}"; END',
             f'CREATE INDEX i ON "{table}" ("{column}")', 'CREATE TABLE "odd"" name" (a, b)',
             'CREATE TABLE "CUPTI_ACTIVITY_KIND_été" (start, "end")', f'CREATE TABLE "{table.lower()} " (a)')
        )
    )  # fmt: skip


GPU_TABLES = [f"{EVENT}{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")]


def move_clock(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Move the times of all GPUs, of one, or of the calls."""
    moved = chance.choice((GPU_TABLES, GPU_TABLES, [f"{EVENT}RUNTIME"]))
    where = chance.choice(("1", "deviceId = 0", "deviceId = 1")) if moved is GPU_TABLES else "1"
    ns = chance.choice((-1, 1)) * chance.choice((1, 5_000, 30_000, 10**6, 3 * 10**7, 10**9, 10**12))
    for table in sorted(set(moved) & set(tables(connection))):
        connection.execute(f'UPDATE "{table}" SET start = start + {ns}, "end" = "end" + {ns} WHERE {where}')


def forget_names(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Delete names of kernels, calls or ranges."""
    some = chance.choice(("nccl%", "cuda%Synchronize%", "cudaMemcpy%", "iteration%", "%gemm%", "%"))
    connection.execute("DELETE FROM StringIds WHERE value LIKE ?", (some,))


def _work_table(connection: sqlite3.Connection, chance: random.Random) -> str:
    return chance.choice(sorted(set(GPU_TABLES) & set(tables(connection))))


def lengthen_work(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Let GPU work end up to an hour after the next of its stream begins."""
    table, every = _work_table(connection, chance), chance.choice((3, 50, 700))
    ns = chance.choice((99_000, 101_000, 10**6, 6 * 10**7, 3_400_000_000, 36 * 10**11))
    connection.execute(f'UPDATE "{table}" SET "end" = "end" + {ns} WHERE rowid % {every} = 1')


def double_work(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Write GPU work twice."""
    table = _work_table(connection, chance)
    connection.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}" WHERE rowid % {chance.choice((1, 5, 90))} = 0')


def lose_work(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Delete the GPU work of a stretch, or of a part of the launches."""
    first, last = connection.execute(f'SELECT min(start), max("end") FROM {GPU_TABLES[0]}').fetchone()
    begin = first + (last - first) * chance.choice((0, 1, 3, 6)) // 10
    end = begin + (last - first) * chance.choice((1, 4, 10)) // 10
    some = chance.choice(("1", "1", "rowid % 3 = 0"))
    for table in set(GPU_TABLES) & set(tables(connection)):
        connection.execute(f'DELETE FROM "{table}" WHERE start BETWEEN {begin} AND {end} AND {some}')


def fail_calls(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Let calls return an error."""
    error, every = chance.choice((2, 209, 700, 719, 600, 4)), chance.choice((1, 40, 1000))
    connection.execute(f"UPDATE {EVENT}RUNTIME SET returnValue = {error} WHERE rowid % {every} = 0")


def number_table(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Give a table the name that another version of nsys may give it."""
    table = chance.choice(tables(connection))
    connection.execute(f'ALTER TABLE "{table}" RENAME TO "{table}_V{chance.choice((2, 3, 11))}"')


def slow_down(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Let everything take longer, or shorter, from a moment on."""
    first, last = connection.execute(f'SELECT min(start), max("end") FROM {EVENT}RUNTIME').fetchone()
    moment, percent = first + (last - first) * chance.choice((1, 3, 5, 8)) // 10, chance.choice((50, 90, 120, 200))
    for table in {*GPU_TABLES, f"{EVENT}RUNTIME", "NVTX_EVENTS"} & set(tables(connection)):
        for column in ("start", '"end"'):
            later = f"{moment} + ({column} - {moment}) * {percent} / 100"
            connection.execute(f'UPDATE "{table}" SET {column} = {later} WHERE {column} > {moment}')


def add_adapter(connection: sqlite3.Connection, chance: random.Random) -> None:
    """List a display adapter without SMs among the GPUs, before or after them."""
    place, sms = chance.choice((-1, 99)), chance.choice((0, None))
    query = "INSERT INTO TARGET_INFO_GPU (rowid, vmId, id, name, cuDevice, smCount) VALUES (?, 0, ?, ?, NULL, ?)"
    connection.execute(query, (place, place, "Microsoft Basic Render Driver", sms))


CHANGES: Sequence[Change] = (
    move_clock, forget_names,
    lengthen_work, double_work, lose_work, lose_work, fail_calls, number_table, slow_down, add_adapter,
    drop_table, empty_table, drop_column, add_column, set_values, set_values, set_values, set_values, shift_values,
    shift_values, shift_values, duplicate_rows, delete_rows, delete_rows, retype_table, add_things,
)  # fmt: skip


def changed(path: Path, chance: random.Random) -> list[str]:
    """Apply one to six changes to an export and return their names, except those that SQLite refuses."""
    connection = sqlite3.connect(path)
    made = []
    for change in chance.choices(CHANGES, k=chance.choice((1, 1, 2, 3, 6))):
        try:
            with connection:
                change(connection, chance)
            made.append(change.__name__)
        except (sqlite3.Error, IndexError):
            continue
    connection.close()
    return made
