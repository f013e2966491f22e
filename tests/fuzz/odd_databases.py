"""Small exports with odd schemas and rows: indices that differ from their tables, views, shared pages, other types."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from tests.build_export import Call, Copy, Gpu, Kernel, Memset, Nvtx, Overhead, ThreadName, build_export
from tests.fuzz.page_damage import damage_pages
from tests.fuzz.structure import CHANGES, tables

Change = Callable[[sqlite3.Connection, random.Random], None]
PAGE_SIZES = (512, 1024, 4096)
LEAF, INTERIOR = 13, 5
SETTINGS = ("META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV")


def make_odd_database(path: Path, chance: random.Random) -> list[str]:
    """Write an export with one to four oddities, and return their names; the last is `damaged` where pages are."""
    make_plain_database(path, chance)
    story = []
    for change in chance.choices((*ODDITIES, *ODDITIES, *CHANGES), k=chance.choice((1, 2, 2, 3, 4))):
        with closing(sqlite3.connect(path)) as connection:
            try:
                with connection:
                    change(connection, chance)
            except (sqlite3.Error, IndexError):
                continue
        story.append(change.__name__)
    if chance.random() < 0.2:
        share_overflow(path, chance.choice(("StringIds", "NVTX_EVENTS", *SETTINGS)))
        story.append("share_overflow")
    if chance.random() < 0.15:
        path.write_bytes(damage_pages(path.read_bytes(), chance)[0])
        story.append("damaged")
    return story


def make_plain_database(path: Path, chance: random.Random) -> None:
    """Write an export with some rows in the tables that commands read, and in one that no command knows."""
    count, long = chance.choice((1, 3, 10, 40)), chance.choice((0, 0, 700, 3000))
    each = range(count)
    build_export(
        path,
        kernels=[Kernel(10 * row, 10 * row + 7, f"kernel {row % 5}" + "k" * long, correlation=row) for row in each],
        copies=[Copy(10 * row, 10 * row + 2, stream=9, correlation=count + row) for row in range(count // 3)],
        memsets=[Memset(10 * row, 10 * row + 1, stream=9, correlation=2 * count + row) for row in range(count // 4)],
        api=[Call(10 * row - 5, 10 * row - 2, correlation=row) for row in each],
        nvtx=[Nvtx(10 * row - 6, 10 * row + 8, f"step {row}" + "n" * long) for row in each]
        + [Nvtx(10 * row - 6, 10 * row + 4, registered=f"part {row % 3}") for row in each],
        overhead=[Overhead(5, 6)],
        gpus=[Gpu()],
        threads=[ThreadName()],
    )
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, column in zip(SETTINGS, ("name", "devStateName"), strict=True):
            more = "" if column == "name" else "devStateName TEXT, "
            connection.execute(f"CREATE TABLE {table} ({more}name TEXT, value TEXT)")
            connection.executemany(
                f"INSERT INTO {table} (name, value) VALUES (?, ?)",
                [("CAPTURE_EVENT_TYPE" + "m" * long, str(row)) for row in each] + [("NvDriverVersion", "1")],
            )
        connection.execute("CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT)")
        connection.execute("INSERT INTO PROCESSES VALUES (?, 10, 'python')", (1 << 48 | 10 << 24,))
        connection.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, text TEXT)")
        connection.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (?, ?)", [(row, f"message {row}") for row in each])
        connection.execute("CREATE TABLE UNKNOWN (a INTEGER, b TEXT)")
        connection.executemany("INSERT INTO UNKNOWN VALUES (?, 'x')", [(row,) for row in each])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {chance.choice(PAGE_SIZES)}")
        connection.execute("VACUUM")


def add_index(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Add an index that covers any columns and holds all rows, some of them, or none."""
    table = chance.choice(tables(connection))
    columns = [str(row[1]) for row in connection.execute(f'PRAGMA table_info("{table}")')]
    chosen = chance.sample(columns, chance.randint(1, len(columns)))
    terms = ", ".join(f'"{name}"' if chance.random() < 0.9 else f'lower("{name}")' for name in chosen)
    name, kept = f"odd{chance.randrange(10**9)}", chance.choice(("1", "0", "0", "start % 3 = 0", f'"{chosen[0]}" > 3'))
    partial = f" WHERE {kept}"
    connection.execute(f'CREATE INDEX {name} ON "{table}" ({terms}){partial}')
    connection.execute("PRAGMA writable_schema = ON")
    if chance.random() < 0.9:
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, ?, '') WHERE name = ?", (partial, name))


def index_with_other_pages(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Let two indices use each other's pages."""
    add_index(connection, chance)
    add_index(connection, chance)
    rows = connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'index' LIMIT 2").fetchall()
    for (name, _), (_, root) in zip(rows, rows[::-1], strict=True):
        connection.execute("UPDATE sqlite_master SET rootpage = ? WHERE name = ?", (root, name))


def table_with_other_pages(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Let a table have the pages of another."""
    connection.execute("PRAGMA writable_schema = ON")
    into, other = chance.choice(tables(connection)), chance.choice(tables(connection))
    query = "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = ?) WHERE name = ?"
    connection.execute(query, (other, into))


def without_rowid(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Store a table without row ids, with another index that lacks rows."""
    table = chance.choice(tables(connection))
    columns = [f'"{row[1]}"' for row in connection.execute(f'PRAGMA table_info("{table}")')]
    key, names = chance.sample(columns, chance.randint(1, len(columns))), ", ".join(columns)
    extra = chance.choice(("", ", UNIQUE ({})".format(", ".join(chance.sample(columns, len(columns))))))
    connection.execute(f'ALTER TABLE "{table}" RENAME TO "old {table}"')
    declared = ", ".join(name + chance.choice((" INTEGER", "", " TEXT", " DESC")[:3]) for name in columns)
    ways = ", ".join(name + chance.choice(("", " DESC", " COLLATE NOCASE")) for name in key)
    connection.execute(f'CREATE TABLE "{table}" ({declared}, PRIMARY KEY ({ways}){extra}) WITHOUT ROWID')
    connection.execute(f'INSERT OR IGNORE INTO "{table}" ({names}) SELECT {names} FROM "old {table}"')
    connection.execute(f'DROP TABLE "old {table}"')
    connection.execute(f'CREATE INDEX wr{chance.randrange(10**9)} ON "{table}" ({names}) WHERE 0')
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_master SET sql = replace(sql, ' WHERE 0', '') WHERE name LIKE 'wr%'")


def odd_keys(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Give StringIds a key that is not the row id."""
    kind = chance.choice(("INTEGER PRIMARY KEY DESC", "INT PRIMARY KEY", "TEXT UNIQUE", "PRIMARY KEY", "REAL"))
    connection.execute("ALTER TABLE StringIds RENAME TO old")
    connection.execute(f"CREATE TABLE StringIds (id {kind}, value TEXT COLLATE NOCASE UNIQUE ON CONFLICT IGNORE)")
    connection.execute("INSERT INTO StringIds SELECT id, value FROM old")
    if chance.random() < 0.5:
        connection.execute("INSERT INTO StringIds VALUES (NULL, 'without id'), ('five', 'a text'), (2.5, 'a number')")
    connection.execute("DROP TABLE old")


def hide_names_of_sqlite(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Add tables and columns with the names that SQLite uses itself."""
    table = chance.choice(tables(connection))
    name = chance.choice(("pragma_table_info", "pragma_table_xinfo", "pragma_index_info", "pragma_index_list"))
    connection.execute(f"CREATE TABLE {name} (name, type, pk, hidden, seqno, cid, arg, schema)")
    connection.execute(f"INSERT INTO {name} VALUES ('streamId', 'INTEGER', 0, 0, 0, 0, '{table}', 'main')")
    connection.execute(f'ALTER TABLE "{table}" ADD COLUMN "{chance.choice(("_rowid_", "rowid", "oid"))}" DEFAULT 1')


def long_default(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Let rows end before a column with a long default."""
    table = chance.choice(("NVTX_EVENTS", "StringIds", *SETTINGS))
    column = {"NVTX_EVENTS": "text"}.get(table, "value")
    connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} TEXT DEFAULT '{'d' * chance.choice((5, 9000))}'")


def other_times(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Store times as texts or real numbers, in all rows or in some."""
    table = chance.choice(("KERNEL", "MEMCPY", "RUNTIME"))
    value = chance.choice(("start || ' ns'", "start + 0.5", "x'00'", "NULL"))
    rows = chance.choice(("1", "rowid % 2"))
    connection.execute(f"UPDATE CUPTI_ACTIVITY_KIND_{table} SET start = {value} WHERE {rows}")


def repeat_rows(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Store all rows of a table twice."""
    table = chance.choice(tables(connection))
    connection.execute(f'INSERT OR IGNORE INTO "{table}" SELECT * FROM "{table}"')


ODDITIES: Sequence[Change] = (
    add_index, add_index, add_index, index_with_other_pages, table_with_other_pages, without_rowid, without_rowid,
    odd_keys, hide_names_of_sqlite, long_default, other_times, repeat_rows,
)  # fmt: skip


def share_overflow(path: Path, table: str) -> None:
    """Let all long rows of a table share the overflow pages of the first, which SQLite does not check."""
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = ? AND type = 'table'"
        row = connection.execute(query, (table,)).fetchone()
    data = bytearray(path.read_bytes())
    size = page_size(data)
    usable, chain = size - data[20], b""
    least = (usable - 12) * 32 // 255 - 23
    for page in _leaves(data, size, row[0]) if row else ():
        for cell in _cells(data, page, 8):
            payload, at = _varint(data, page + cell)
            _, at = _varint(data, at)
            if payload > usable - 35:
                local = least + (payload - least) % (usable - 4)
                place = at + (local if local <= usable - 35 else least)
                chain = chain or bytes(data[place : place + 4])
                data[place : place + 4] = chain
    path.write_bytes(data)


def page_size(data: bytes | bytearray) -> int:
    """Return the size of a database's pages."""
    size = int.from_bytes(data[16:18], "big")
    return 65536 if size == 1 else size


def _leaves(data: bytearray, size: int, root: int) -> list[int]:
    """Return the offsets of the leaf pages of a table with row ids."""
    page = (root - 1) * size
    if data[page] != INTERIOR:
        return [page] if data[page] == LEAF else []
    children = [data[page + cell : page + cell + 4] for cell in _cells(data, page, 12)]
    numbers = [int.from_bytes(child, "big") for child in (*children, data[page + 8 : page + 12])]
    return [leaf for number in numbers for leaf in _leaves(data, size, number)]


def _cells(data: bytearray, page: int, header: int) -> list[int]:
    """Return the offsets of a page's cells within the page."""
    count = int.from_bytes(data[page + 3 : page + 5], "big")
    places = range(page + header, page + header + 2 * count, 2)
    return [int.from_bytes(data[place : place + 2], "big") for place in places]


def _varint(data: bytearray, at: int) -> tuple[int, int]:
    value = 0
    while True:
        value, at = value << 7 | data[at] & 127, at + 1
        if data[at - 1] < 128:
            return value, at
