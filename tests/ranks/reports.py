"""Reports for fleets: real ones, and a real one of two processes, split by hand into two with different clocks."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from tests.captures import SAMPLES
from traceview.model.fleet import Fleet, ReportResult
from traceview.ranks.measure_report import measure_report
from traceview.ranks.merge import merge

RANKS = SAMPLES / "ranks"
OWNER = ("globalPid", "globalTid")


def ranks_of(name: str) -> list[Path]:
    """Return the four reports of a run in samples/ranks."""
    paths = sorted(RANKS.glob(f"{name}_rank*.sqlite.xz"))
    assert len(paths) == 4, "a clone has every sample"
    return paths


def merged(paths: list[Path], **options: float) -> Fleet:
    """Read reports in this process and merge them."""
    return merge([path.name for path in paths], [result_of(path) for path in paths], **options)


@cache
def result_of(path: Path) -> ReportResult:
    """Read a report in this process, once."""
    return measure_report(path, None, None)


def process_alone(source: Path, out: Path, process: int, *, shift: int = 0, drift: int = 0) -> Path:
    """Copy the events of one process, on a clock that is `shift` ns ahead and gains `drift` ns per second.

    The events are real; only their times are changed, because one nsys session has one clock.
    """
    shutil.copyfile(source, out)
    with closing(sqlite3.connect(out)) as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info('{table}')")]
            owner = next((name for name in OWNER if name in columns), None)
            if owner is not None:
                database.execute(f"DELETE FROM '{table}' WHERE ({owner} >> 24) & 16777215 != ?", (process,))
            for name in ("start", "end"):
                if name in columns and owner is not None:
                    database.execute(
                        f"UPDATE '{table}' SET {name} = {name} + ? + {name} * ? / 1000000000", (shift, drift)
                    )
        database.commit()
    return out
