"""All invariants of the document of one capture, and its counts against SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.invariants import broken, miscounted, parsed
from tests.oracle.export import KINDS
from traceview.model.analysis import Analysis
from traceview.pipeline import analyze
from traceview.report.analysis import to_json

MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"


def violations(capture: Path, analysis: Analysis | None = None) -> list[str]:
    """Return a line for each violated invariant, of its analysis if that is at hand."""
    result = parsed(to_json(analysis or analyze(capture)))
    lines = list(broken(result))
    if capture.suffix == ".sqlite":
        try:
            lines += miscounted(result, capture)
            lines += _miscounted_copies(result, capture)
        except (sqlite3.Error, KeyError, TypeError, ValueError, OverflowError):
            pass  # an export that the slow computation does not know
    return lines


def _miscounted_copies(result: dict[str, Any], export: Path) -> Iterator[str]:
    """Yield kinds of copies whose count or bytes differ from SQL's, where no row is left out."""
    if any(note["text"].startswith(MEMCPY) for note in result["notes"]):
        return
    expected: dict[str, list[int]] = {}
    with sqlite3.connect(f"file:{export}?mode=ro&immutable=1", uri=True) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (MEMCPY,)).fetchone():
            return
        for kind, count, size in connection.execute(f"SELECT copyKind, count(*), sum(bytes) FROM {MEMCPY} GROUP BY 1"):
            row = expected.setdefault(KINDS.get(kind, "other"), [0, 0])
            row[:] = row[0] + count, row[1] + size
    counted: dict[str, list[int]] = {}
    for device in result["devices"]:
        for copies in device["copies"]:
            row = counted.setdefault(copies["kind"], [0, 0])
            row[:] = row[0] + copies["count"], row[1] + copies["bytes"]
    if counted != expected:
        yield f"copies by kind (count, bytes) are {counted}, SQL has {expected}"
