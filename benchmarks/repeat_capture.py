"""Create a large capture by repeating the events of a small one.

    python benchmarks/repeat_capture.py REPORT.sqlite TIMES OUT.sqlite

Each repetition is shifted in time by the length of the capture. Correlation ids are shifted too, so that they stay
unique and launches keep their GPU work. Names, devices and streams are unchanged.
h200_dual.sqlite repeated 167 times is 1.0 million kernels and 2.4 million API calls in 193 MB.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import sys
from pathlib import Path

REPEATED = (
    "CUDA_GRAPH_EVENTS",
    "CUDA_GPU_MEMORY_USAGE_EVENTS",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
    "PROFILER_OVERHEAD",
)
TIMES = ("start", "end", "timestamp")
RANGES_ONLY = {"NVTX_EVENTS": "WHERE eventType IN (59, 60)"}  # a domain is created once
GAP_NS = 1000


def repeat_capture(report: Path, times: int, out: Path) -> None:
    """Write the events of `report`, repeated `times` times, to `out` atomically."""
    half_written = out.with_name(out.name + ".part")
    shutil.copyfile(report, half_written)
    half_written.chmod(0o644)
    try:
        _repeat_in_place(half_written, times)
        half_written.replace(out)
    finally:
        half_written.unlink(missing_ok=True)


def repeated_sample(times: int) -> Path:
    """Return the capture with samples/dual.sqlite repeated `times` times; create it in benchmarks/data if missing."""
    here = Path(__file__).resolve().parent
    report = here / "data" / f"dual_x{times}.sqlite"
    if not report.exists():
        report.parent.mkdir(exist_ok=True)
        repeat_capture(here.parent / "samples" / "dual.sqlite", times, report)
    return report


def _repeat_in_place(copy: Path, times: int) -> None:
    export = sqlite3.connect(copy)
    export.execute("PRAGMA journal_mode = OFF")
    export.execute("PRAGMA synchronous = OFF")
    try:
        tables = {name: columns for name in REPEATED if (columns := _columns(export, name))}
        steps = _steps(export, tables)
        with export:
            export.execute("CREATE TEMP TABLE repetition (number INTEGER PRIMARY KEY)")
            export.executemany("INSERT INTO repetition VALUES (?)", ((number,) for number in range(1, times)))
            for table, columns in tables.items():
                _append(export, table, columns, steps)
    finally:
        export.close()


def _columns(export: sqlite3.Connection, table: str) -> list[str]:
    return [name for (name,) in export.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def _steps(export: sqlite3.Connection, tables: dict[str, list[str]]) -> dict[str, int]:
    """Return the shift of each column per repetition: the capture's length for times, past the largest for ids."""
    earliest, latest, largest = [], [], [0]
    for table, columns in tables.items():
        if "start" in columns and "end" in columns:
            low, high = export.execute(
                f'SELECT min(start), max(max(start, coalesce("end", start))) FROM "{table}"'
            ).fetchone()
            if low is not None:
                earliest.append(low)
                latest.append(high)
        if "correlationId" in columns:
            largest.append(export.execute(f'SELECT coalesce(max(correlationId), 0) FROM "{table}"').fetchone()[0])
    if not earliest:
        raise ValueError("holds no events to repeat")
    length = max(latest) - min(earliest) + GAP_NS
    return {**dict.fromkeys(TIMES, length), "correlationId": max(largest) + 1}


def _append(export: sqlite3.Connection, table: str, columns: list[str], steps: dict[str, int]) -> None:
    moved = [f'"{name}"' + (f" + {steps[name]} * number" if name in steps else "") for name in columns]
    if "correlationId" in columns:  # 0 means without correlation (unified-memory copies) and stays 0
        at = columns.index("correlationId")
        moved[at] = f"CASE correlationId WHEN 0 THEN 0 ELSE {moved[at]} END"
    export.execute(f'CREATE TEMP TABLE once AS SELECT * FROM "{table}" {RANGES_ONLY.get(table, "")}')
    export.execute(f'INSERT INTO "{table}" SELECT {", ".join(moved)} FROM repetition, once ORDER BY number, once.rowid')
    export.execute("DROP TABLE once")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("times", type=int)
    parser.add_argument("out", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.times < 1:
        parser.error(f"TIMES is {chosen.times}: it must be at least 1")
    try:
        repeat_capture(chosen.report, chosen.times, chosen.out)
    except (OSError, ValueError, sqlite3.Error) as error:
        parser.error(f"{chosen.report}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
