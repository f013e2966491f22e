"""Measure the cost of each format of `traceview export`.

    python benchmarks/export.py REPORT [ROUNDS]

Prints the minimum time and memory of some runs and the output size for each format, and the same for only reading the
capture. `busy` is processor time, which exceeds the wall time on several cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

READ = "import sys; from traceview.pipeline import open_trace; open_trace(sys.argv[1])"
WAYS = {"perfetto": ".pftrace", "perfetto, packed": ".pftrace.gz"}
WAYS |= {"parquet": ""}


class Run(NamedTuple):
    """Wall and processor time in seconds, and peak memory in MB."""

    wall: float
    busy: float
    memory: float


def run(command: list[str]) -> Run:
    """Run a command and measure it."""
    begun = time.perf_counter()
    child = subprocess.Popen(command)
    _, status, used = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} ended with {status}")
    return Run(time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000)


def size(path: Path) -> float:
    """Return the size of a file or folder in MB."""
    files = path.iterdir() if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files) / 1e6


def main() -> None:
    """Measure all formats, one run of each per round."""
    report, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
    results: dict[str, list[Run]] = {}
    sizes = {}
    with tempfile.TemporaryDirectory(dir=Path(report).parent) as folder:
        for _ in range(rounds):
            results.setdefault("reading alone", []).append(run([sys.executable, "-c", READ, report]))
            for name, suffix in WAYS.items():
                place = Path(folder) / f"out{suffix or name}"
                form = name.partition(",")[0]
                arguments = ["export", report, "--format", form, "-o", str(place), "-q"]
                command = [sys.executable, "-m", "traceview", *arguments]
                results.setdefault(name, []).append(run(command))
                sizes[name] = size(place)
    print(f"{report}: {size(Path(report)):.0f} MB")
    print("| format | clock | busy | memory | size |\n| --- | --- | --- | --- | --- |")
    for name, runs in results.items():
        wall, busy, memory = (min(column) for column in zip(*runs, strict=True))
        written = f"{sizes[name]:,.0f} MB" if name in sizes else ""
        print(f"| {name} | {wall:.1f} s | {busy:.1f} s | {memory:,.0f} MB | {written} |")


if __name__ == "__main__":
    main()
