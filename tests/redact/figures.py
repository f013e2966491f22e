"""The figures of a capture, and the values in its file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from traceview.model.stacks import HostEvidence
from traceview.pipeline import analyze, open_trace
from traceview.report.analysis import to_json


def figures(path: Path) -> dict[str, Any]:
    """Return the JSON of a capture's analysis without the file's name, and without what rests on stacks."""
    trace = open_trace(path)
    document: dict[str, Any] = json.loads(to_json(analyze(replace(trace, evidence=without_stacks(trace.evidence)))))
    del document["report"]["file"]
    return document


def without_stacks(evidence: HostEvidence) -> HostEvidence:
    """Return evidence with the samples, but not their stacks, which a redacted copy does not have."""
    return HostEvidence(samples=evidence.samples.with_columns(stack=pl.lit(-1, pl.Int32)), events=evidence.events)


def numbers(document: Any) -> list[float]:
    """Return every number, sorted: what ties is in the order of names."""
    waiting, seen = [document], []
    while waiting:
        item = waiting.pop()
        if isinstance(item, (dict, list)):
            waiting += item.values() if isinstance(item, dict) else item
        elif isinstance(item, (int, float)):
            seen.append(item)
    return sorted(seen)


def values(path: Path) -> Iterator[tuple[str, str, Any]]:
    """Yield table, column and value of every cell of a database, and its SQL definitions."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        database.text_factory = lambda text: text.decode("utf-8", "replace")
        yield from (("sqlite_master", "sql", sql) for (sql,) in database.execute("SELECT sql FROM sqlite_master"))
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = database.execute(f'SELECT * FROM "{table}"')
            names = [column[0] for column in cursor.description]
            for row in cursor:
                yield from ((table, name, value) for name, value in zip(names, row, strict=True))


def texts(path: Path) -> str:
    """Return every text and blob of a database, joined."""
    distinct = {value for _, _, value in values(path) if isinstance(value, (str, bytes))}
    return "\0".join(value if isinstance(value, str) else value.decode("utf-8", "replace") for value in distinct)
