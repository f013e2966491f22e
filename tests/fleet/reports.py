"""Reports for the fleet: real ones a rank, and a real one of two processes split by hand into two with other clocks."""

from __future__ import annotations

import lzma
import shutil
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from tests.captures import SAMPLES
from traceview.fleet.merge import merge
from traceview.fleet.read_one import read_report
from traceview.model.fleet import Fleet, ReportResult

RANKS = SAMPLES / "ranks"
OWNER = ("globalPid", "globalTid")


def ranks_of(name: str) -> list[Path]:
    """Return the four reports of a run in samples/ranks."""
    found = sorted(RANKS.glob(f"{name}_rank*.sqlite.xz"))
    assert len(found) == 4, "a clone holds every sample"
    return found


def unpacked(path: Path, folder: Path) -> Path:
    """Return a sample without its packing."""
    plain = folder / path.stem
    plain.write_bytes(lzma.decompress(path.read_bytes()))
    return plain


def merged(paths: list[Path], **options: float) -> Fleet:
    """Read reports in this process and merge them."""
    return merge([path.name for path in paths], [result_of(path) for path in paths], **options)


@cache
def result_of(path: Path) -> ReportResult:
    """Read a report in this process, once."""
    return read_report(path, None, None)


def process_alone(source: Path, out: Path, process: int, *, shift: int = 0, drift: int = 0) -> Path:
    """Copy what one process did, on a clock that shows `shift` ns more and gains `drift` ns a second.

    No capture comes so: a session of nsys has one clock. Only the times are another's; what happened is real.
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
