"""What each format of `traceview export` takes.

    python benchmarks/export.py REPORT [ROUNDS]

Prints, for each format, the least time and memory of some runs, the size of what is written, and the same for reading
the capture alone. `busy` is processor time; on two idle cores the clock shows less.
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
WAYS = {"perfetto": ".pftrace", "perfetto, packed": ".pftrace.gz", "chrome": ".json", "chrome, packed": ".json.gz"}
WAYS |= {"csv": "", "parquet": ""}


class Run(NamedTuple):
    """Seconds on the clock and of processors, and the most memory, in MB."""

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
    """Return how large a file or folder is, in MB."""
    files = path.iterdir() if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files) / 1e6


def main() -> None:
    """Measure every format, one run of each a round."""
    report, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
    found: dict[str, list[Run]] = {}
    sizes = {}
    with tempfile.TemporaryDirectory(dir=Path(report).parent) as folder:
        for _ in range(rounds):
            found.setdefault("reading alone", []).append(run([sys.executable, "-c", READ, report]))
            for name, suffix in WAYS.items():
                place = Path(folder) / f"out{suffix or name}"
                form = name.partition(",")[0]
                command = [sys.executable, "-m", "traceview", "export", report, "--format", form, "-o", str(place), "-q"]
                found.setdefault(name, []).append(run(command))
                sizes[name] = size(place)
    print(f"{report}: {size(Path(report)):.0f} MB")
    print("| format | clock | busy | memory | size |\n| --- | --- | --- | --- | --- |")
    for name, runs in found.items():
        wall, busy, memory = (min(column) for column in zip(*runs, strict=True))
        written = f"{sizes[name]:,.0f} MB" if name in sizes else ""
        print(f"| {name} | {wall:.1f} s | {busy:.1f} s | {memory:,.0f} MB | {written} |")


if __name__ == "__main__":
    main()
