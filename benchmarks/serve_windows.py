"""Measure `traceview analyze --serve`: how long it takes to start, and to answer any zoom of the timeline.

    python benchmarks/serve_windows.py [--memory 4GB] [--windows 200] [--rows 12] REPORT.sqlite

Requests the marks of --rows rows, as a page of 1,400 pixels does. The windows have random places, and lengths from the
whole capture to a two-millionth of it. Prints the median, the 95th percentile and the slowest answer.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIXELS = 1_400
SHORTEST = 22  # halvings of the capture's length


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--memory", default="4GB")
    parser.add_argument("--windows", type=int, default=200)
    parser.add_argument("--rows", type=int, default=12, help="rows of the timeline in each request")
    given = parser.parse_args()
    options = ["--serve", "--quiet", "--memory", given.memory]
    command = [sys.executable, "-m", "traceview", "analyze", str(given.report), *options]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            print(f"ready after {time.perf_counter() - began:.1f} s")
            chosen = windows(given.report, given.windows)
            print(summary([answer_time(address, *window, given.rows) for window in chosen]))
        finally:
            server.terminate()


def windows(report: Path, count: int) -> list[tuple[int, int]]:
    """Return windows of a capture, in ns from the start of its timeline."""
    with sqlite3.connect(f"{report.resolve().as_uri()}?mode=ro", uri=True) as export:
        query = "SELECT min(start), max(end) FROM CUPTI_ACTIVITY_KIND_KERNEL"
        first, last = export.execute(query).fetchone()
    chance, length, chosen = random.Random(1), last - first, []
    for _ in range(count):
        width = length >> chance.randrange(SHORTEST)
        start = chance.randrange(max(length - width, 1))
        chosen.append((start, start + width))
    return chosen


def answer_time(address: str, start: int, end: int, rows: int) -> float:
    """Return the seconds that an answer takes."""
    shift = max((end - start) // PIXELS, 1).bit_length() - 1
    numbers = ",".join(map(str, range(rows)))
    began = time.perf_counter()
    with urllib.request.urlopen(f"{address}marks?from={start}&to={end}&shift={shift}&rows={numbers}") as answer:
        answer.read()
    return time.perf_counter() - began


def summary(seconds: list[float]) -> str:
    """Return the median, the 95th percentile and the slowest answer."""
    ordered = sorted(seconds)
    return (
        f"{len(ordered)} windows: median {statistics.median(ordered):.3f} s, "
        f"95% {ordered[len(ordered) * 95 // 100]:.3f} s, slowest {ordered[-1]:.3f} s"
    )


if __name__ == "__main__":
    main()
