"""Passes generated exports through analyze, info and redact, and compares the rows of each table."""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.odd_databases import make_odd_database, page_size
from traceview.captures.info import describe
from traceview.captures.redact import COLUMNS, TEXTS, Redacted, redact
from traceview.errors import TraceviewError
from traceview.pipeline import analyze
from traceview.read import raw
from traceview.read.formats import read_capture
from traceview.read.raw import RawCapture

PARTLY_KEPT = {raw.THREAD_NAMES, raw.PROCESSES, raw.STRINGS}
ANALYZED = 8  # one case in this many is measured, too
TREES = {2: 12, 10: 8, 5: 12, 13: 8}  # types of b-tree pages, and the sizes of their headers


@dataclass
class Totals:
    """What happened to the cases, and each difference."""

    counts: Counter[str] = field(default_factory=Counter)
    differences: list[dict[str, object]] = field(default_factory=list)
    core_seconds: float = 0.0

    def add(self, other: Totals) -> None:
        """Add the totals of other cases."""
        self.counts += other.counts
        self.differences += other.differences
        self.core_seconds += other.core_seconds


def run_cases(seed: int, cases: range, folder: Path) -> Totals:
    """Check cases; the database of the last one stays in `folder`."""
    totals, begun = Totals(), time.process_time()
    path = folder / "case.sqlite"
    for case in cases:
        chance = random.Random(f"{seed} rows {case}")
        story = make_odd_database(path, chance)
        counts: Counter[str] = Counter()
        for what in check(path, story, case % ANALYZED == 0, counts):
            totals.differences.append({"case": case, "story": story, "difference": what})
        totals.counts += counts + Counter({"cases": 1, **{f"cases with {name}": 1 for name in story}})
    totals.core_seconds = time.process_time() - begun
    return totals


def check(path: Path, story: Collection[str], is_analyzed: bool, counts: Counter[str]) -> Iterator[str]:
    """Yield what differs between the rows in the file and those that analyze, info and redact read.

    Every command reads and normalises a capture in the same way, as info does here; `is_analyzed` measures it too.
    """
    copy = path.with_name("copy.sqlite")
    copy.unlink(missing_ok=True)
    results: dict[str, object] = {}
    steps: Mapping[str, Callable[[], object]] = {
        "read": lambda: read_capture(path),
        "info": lambda: describe(path),
        "redact": lambda: redact(path, copy),
        "analyze": lambda: analyze(path) if is_analyzed else None,
        "read the copy": lambda: read_capture(copy) if copy.exists() else None,
    }
    for name, step in steps.items():
        try:
            results[name] = step()
            counts[f"{name} passed"] += 1
        except TraceviewError as error:
            results[name] = error
            counts[f"{name} refused"] += 1
        except Exception as error:  # a find
            yield f"{name}: {error!r}"
    # A table with the pages of another kind of table is damaged, too, though the rest of the file is not.
    yield from _refused_alone(results, not {"damaged", "table_with_other_pages"}.isdisjoint(story))
    yield from _different_counts(results, None if "damaged" in story else true_counts(path))


def _refused_alone(results: Mapping[str, object], is_damaged: bool) -> Iterator[str]:
    """Yield where a command refuses what analyze reads."""
    if isinstance(results.get("read"), RawCapture) and not is_damaged:
        for name in ("info", "redact", "read the copy"):
            if isinstance(results.get(name), TraceviewError):
                yield f"{name} refuses alone: {results[name]}"


def _different_counts(results: Mapping[str, object], true: Mapping[str, int] | None) -> Iterator[str]:
    """Yield the tables whose rows differ; `true` are the rows in the file, where no page is damaged."""
    capture, copied, contents = results.get("read"), results.get("read the copy"), results.get("info")
    read = _rows(capture)
    listed = dict(getattr(contents, "tables", {}))
    for table, rows in read.items():
        if listed and listed.get(table) != rows:
            yield f"{table}: analyze reads {rows} rows, info {listed.get(table)}"
    for table, rows in listed.items():
        if true is not None and true.get(table, rows) != rows:
            yield f"{table}: the file has {true[table]} rows, info {rows}"
    if isinstance(copied, RawCapture) and isinstance(capture, RawCapture) and isinstance(results["redact"], Redacted):
        yield from _different_copies(capture, copied)


def _rows(capture: object) -> dict[str, int]:
    if not isinstance(capture, RawCapture):
        return {}
    return {name: len(frame) for name, frame in capture.tables.items() if frame.width}


def _different_copies(capture: RawCapture, copied: RawCapture) -> Iterator[str]:
    """Yield the tables whose numbers are not in the copy."""
    for table, frame in capture.tables.items():
        other = copied.tables.get(table)
        if table not in COLUMNS or table in PARTLY_KEPT or not frame.width:
            continue
        if other is None:
            yield f"{table}: the copy lacks it"
        elif len(frame) != len(other):
            yield f"{table}: the copy has {len(other)} rows, the capture {len(frame)}"
        else:
            numbers = [name for name in frame.columns if name not in TEXTS.get(table, {}) and name != raw.SHAPE]
            if not frame.select(numbers).equals(other.select(numbers)):
                yield f"{table}: the copy has other numbers"


def true_counts(path: Path) -> dict[str, int]:
    """Return the rows of each ordinary table, counted in its pages; without tables whose pages are not those of one."""
    data = path.read_bytes()
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        counts = {name: _count_cells(data, page_size(data), root) for name, root in tables}
    return {name: count for name, count in counts.items() if count is not None}


def _count_cells(data: bytes, size: int, number: int) -> int | None:
    """Return the rows in a b-tree: cells of leaves, and of all pages if the keys are the rows."""
    at = (number - 1) * size
    kind = data[at]
    if kind not in TREES:
        return None
    cells = int.from_bytes(data[at + 3 : at + 5], "big")
    if kind in (10, 13):
        return cells
    places = [int.from_bytes(data[at + 12 + 2 * cell : at + 14 + 2 * cell], "big") for cell in range(cells)]
    children = [data[at + place : at + place + 4] for place in places] + [data[at + 8 : at + 12]]
    counts = [_count_cells(data, size, int.from_bytes(child, "big")) for child in children]
    return None if None in counts else sum(filter(None, counts)) + cells * (kind == 2)
