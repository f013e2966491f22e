"""Twins of a report, whose figures must be equal: other times, other numbers of strings, names that JSON has not."""

from __future__ import annotations

import json
import random
import sqlite3
from typing import Any

from tests.fuzz.structure import tables

MOVED = ("start", "end", "timestamp", "rawTimestamp")
TIMES = ("start_ns", "end_ns", "gpu_end_ns", "window_ns")
NAMED = ("nameId", "textId", "shortName", "demangledName", "mangledName", "name", "mode")
ODD_TEXTS = ('"cpu", "dtype": "float32"}', "\n(1): <module>", "C:\\Users\\me", "\x01", '"', "N/A", "}, {", "[")


def moved_in_time(connection: sqlite3.Connection, chance: random.Random) -> int:
    """Move all times of an export, mostly below zero; return by how much."""
    by = chance.choice((-(10**9), -(10**12), -(10**15), 10**15, 1_795_251_074_194_803_813))
    for table in sorted(set(tables(connection))):
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        for column in sorted(set(MOVED) & set(columns)):
            connection.execute(
                f'UPDATE "{table}" SET "{column}" = "{column}" + {by} WHERE typeof("{column}") = \'integer\''
            )
    return by


def renumbered(connection: sqlite3.Connection, chance: random.Random) -> int:
    """Give the strings of an export other numbers, in another order."""
    numbers = [row[0] for row in connection.execute("SELECT id FROM StringIds WHERE typeof(id) = 'integer'")]
    others = chance.sample(range(10**6), len(numbers))
    connection.execute("CREATE TEMP TABLE renamed (old INTEGER PRIMARY KEY, new INTEGER)")
    connection.executemany("INSERT INTO renamed VALUES (?, ?)", zip(numbers, others, strict=True))
    for table, columns in (
        (table, connection.execute(f'PRAGMA table_info("{table}")')) for table in sorted(set(tables(connection)))
    ):
        for column in [row[1] for row in columns if row[1] in NAMED or (table == "StringIds" and row[1] == "id")]:
            connection.execute(
                f'UPDATE "{table}" SET "{column}" = (SELECT new FROM renamed WHERE old = "{column}") '
                f'WHERE "{column}" IN (SELECT old FROM renamed) AND typeof("{column}") = \'integer\''
            )
    return 0


def without_times(value: Any, by: int) -> Any:
    """Return a document with its times moved back, without the name of its file and without texts that hold times."""
    if isinstance(value, dict):
        return {
            key: (_moved(inner, by) if key in TIMES else without_times(inner, by))
            for key, inner in value.items()
            if key not in ("report", "clock")
        }
    return [without_times(inner, by) for inner in value] if isinstance(value, list) else value


def _moved(value: Any, by: int) -> Any:
    if isinstance(value, list):
        return [_moved(inner, by) for inner in value]
    return value + by if isinstance(value, int) else value


def with_odd_names(document: dict[str, Any], chance: random.Random) -> bytes:
    """Return a trace as torch writes it: with odd texts, not escaped, at the end of the names of some ops."""
    ops, marks = [event for event in document["traceEvents"] if event.get("cat") == "cpu_op"], dict[str, str]()
    for event in chance.sample(ops, min(len(ops), chance.choice((1, 2, 5)))):
        mark = f"@odd{len(marks)}@"
        event["name"] += mark
        marks[mark] = "".join(chance.choices(ODD_TEXTS, k=chance.choice((1, 1, 2))))
    text = json.dumps(document)
    for mark, odd in marks.items():
        text = text.replace(mark, odd)
    return text.encode()
