"""Measure `traceview analyze` with and without a bound on memory, against the plain SQL scan.

    python benchmarks/sliced.py [--memory 4GB] [--limit SECONDS] [--page] [--against WORKTREE] [--figure FILE.svg]
                                REPORT.sqlite...

Prints a row for each report and way: wall time, processor time (user and system) and its ratio to the scan's, bytes
read from the disk, and the peak memory of all processes together. "default" is the analysis without `--memory`, where
the complete capture fits into memory. A report of less than half of the free memory is read once before. A way has no
figures if it fails or takes more than --limit seconds. `--figure` draws wall time against the size of the report.
`benchmarks/repeat_capture.py` makes large reports.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from traceview.engine.memory import fits_memory, free_memory

ROOT = Path(__file__).resolve().parent.parent
BETWEEN_SAMPLES, SAMPLES = 0.25, 100  # s, and the time so far is divided by SAMPLES where that is longer
TICKS = os.sysconf("SC_CLK_TCK")
COLORS = ("#555555", "#0072b2", "#d55e00", "#009e73", "#cc79a7")


class Cost(NamedTuple):
    """What a command took: seconds of wall and processor time, bytes read from the disk, peak bytes of memory."""

    seconds: float
    processor: float
    read: int
    peak: int


def measure(command: list[str], limit: float, root: Path = ROOT) -> Cost | None:
    """Run a command of the package in `root` and return its cost with its workers; None if it fails or takes longer."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, cwd=root, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True, env=environment(root)
        )
        processor: dict[int, float] = {}
        read: dict[int, int] = {}
        peak = 0
        while process.poll() is None:
            if time.perf_counter() - started > limit:
                os.killpg(process.pid, signal.SIGKILL)
            memory = 0
            for member in members(process.pid):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    processor[member], read[member], own = sample(member)
                    memory += own
            peak = max(peak, memory)
            time.sleep(max(BETWEEN_SAMPLES, (time.perf_counter() - started) / SAMPLES))
        if process.returncode:
            errors.seek(0)
            print(errors.read().decode(errors="replace").strip().splitlines()[-1:], file=sys.stderr)
            return None
    return Cost(time.perf_counter() - started, sum(processor.values()), sum(read.values()), peak)


def environment(root: Path = ROOT) -> dict[str, str]:
    """Return the environment of the commands: they use the package in `root`."""
    return {**os.environ, "PYTHONPATH": str(root)}


def members(session: int) -> list[int]:
    """Return the processes of a session."""
    own = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if folder.name.isdigit() and int(stat(int(folder.name))[3]) == session:
                own.append(int(folder.name))
    return own


def stat(process: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent, group, session, ..."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def sample(process: int) -> tuple[float, int, int]:
    """Return a process's processor time in s, the bytes that it read from the disk, and its share of memory."""
    fields = stat(process)
    folder = Path(f"/proc/{process}")
    read = next(int(line.split()[1]) for line in (folder / "io").read_text().splitlines() if "read_bytes" in line)
    rollup = (folder / "smaps_rollup").read_text().splitlines()
    memory = next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
    return (int(fields[11]) + int(fields[12])) / TICKS, read, memory


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--memory", default="4GB")
    parser.add_argument("--limit", type=float, default=3600.0)
    parser.add_argument("--page", action="store_true", help="write the page, too")
    parser.add_argument("--only", choices=("scan", "default", "parts"), action="append", help="may be given again")
    parser.add_argument("--against", type=Path, metavar="WORKTREE", help="measure another revision, too")
    parser.add_argument("--figure", type=Path, metavar="FILE.svg", help="draw the wall times over the sizes of reports")
    given = parser.parse_args()
    lines: dict[str, list[tuple[float, float]]] = {}
    print("| report | way | wall | processor | ratio | read | peak memory |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for report in given.reports:
        read_once(report)
        with tempfile.TemporaryDirectory() as folder:
            page = ["--html", f"{folder}/page.html"] if given.page else ["--no-html"]
            analyze = [sys.executable, "-m", "traceview", "analyze", str(report.resolve()), *page]
            ways = {
                "scan": [sys.executable, "benchmarks/plain_scan.py", str(report.resolve())],
                "default": [*analyze, "--json", f"{folder}/default.json"],
                "parts": [*analyze, "--json", f"{folder}/parts.json", "--memory", given.memory],
            }
            scan: Cost | None = None
            for way, command in ways.items():
                if given.only and way not in given.only:
                    continue
                if way == "default" and not fits_memory(report, free_memory()):
                    continue
                roots = (
                    {way: ROOT}
                    if given.against is None or way == "scan"
                    else {f"{way} before": given.against, way: ROOT}
                )
                for name, root in roots.items():
                    cost = measure(command, given.limit, root.resolve())
                    scan = cost if way == "scan" else scan
                    print(row(report, name, cost, scan), flush=True)
                    if cost is not None:
                        lines.setdefault(name, []).append((report.stat().st_size / 1e9, cost.seconds))
    if given.figure is not None:
        given.figure.write_text(figure(lines))


def read_once(report: Path) -> None:
    """Read a report of less than half of the free memory, so that no way reads it from the disk."""
    if 2 * report.stat().st_size < free_memory():
        with report.open("rb") as content:
            while content.read(1 << 24):
                pass


def figure(lines: dict[str, list[tuple[float, float]]]) -> str:
    """Return an SVG of lines of (GB of a report, seconds) by name, both axes logarithmic."""
    points = [point for line in lines.values() for point in line]
    low, high = ([edge(axis) for axis in zip(*points, strict=True)] for edge in (min, max))

    def place(point: tuple[float, float]) -> tuple[float, float]:
        along = [math.log(v / a) / max(math.log(b / a), 1e-9) for v, a, b in zip(point, low, high, strict=True)]
        return 60 + 480 * along[0], 300 - 270 * along[1]

    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 340" font-family="sans-serif" font-size="11">']
    parts.append('<rect width="700" height="340" fill="white"/>')
    for number, (name, line) in enumerate(lines.items()):
        color = COLORS[number % len(COLORS)]
        places = [place(point) for point in line]
        parts.append(
            f'<polyline fill="none" stroke="{color}" stroke-width="2" '
            f'points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
        )
        for (x, y), (size, seconds) in zip(places, line, strict=True):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>')
            parts.append(f'<text x="{x + 5:.1f}" y="{y - 5:.1f}" fill="{color}">{seconds:.1f} s</text>')
            parts.append(f'<text x="{x:.1f}" y="330" text-anchor="middle">{size:.2f} GB</text>')
        parts.append(f'<text x="590" y="{30 + 16 * number}" fill="{color}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def row(report: Path, way: str, cost: Cost | None, scan: Cost | None) -> str:
    """Return a row of the table."""
    if cost is None:
        return f"| {report.name} | {way} | - | - | - | - | - |"
    ratio = f"{cost.processor / scan.processor:.1f}" if scan and scan.processor else ""
    return (
        f"| {report.name} | {way} | {cost.seconds:.1f} s | {cost.processor:.1f} s | {ratio} | "
        f"{cost.read / 1e9:.2f} GB | {cost.peak / 1e9:.2f} GB |"
    )


if __name__ == "__main__":
    main()
