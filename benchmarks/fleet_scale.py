"""Measure time and memory of `traceview fleet` over many reports, with two local workers or with Dask.

    python benchmarks/fleet_scale.py [--sizes 100 300 1000] [--reports FILE...] [--only local|dask]

Prints a row for each size: wall time, processor time, both per report, peak memory of the main process and of the
largest worker, and whether both ways gave the same bytes. The reports are links to a few real ones, so disk reads are
not measured.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import lzma
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}


class Run(NamedTuple):
    """A run: wall and processor time in seconds, peak MB of the main process and the largest worker, a digest."""

    seconds: float
    processor: float
    first_mb: int
    worker_mb: int
    digest: str


def unpacked(folder: Path, reports: list[Path]) -> list[Path]:
    """Return the reports with .xz files unpacked, so that unpacking is not measured."""
    paths = []
    for report in reports:
        plain = report.resolve()
        if report.suffix == ".xz":
            plain = folder / report.stem
            plain.write_bytes(lzma.decompress(report.read_bytes()))
        paths.append(plain)
    return paths


def links(folder: Path, reports: list[Path], size: int) -> Path:
    """Create a folder with this many links to the reports, in turn."""
    made = folder / f"of_{size}"
    made.mkdir()
    for number in range(size):
        (made / f"rank{number:04}.sqlite").symlink_to(reports[number % len(reports)])
    return made


def peak_mb(process: int) -> int:
    """Return the peak resident memory of a process so far; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) // 1024
    return 0


def processor_time(processes: list[int]) -> float:
    """Return the processor time of running processes in seconds."""
    ticks = 0
    for process in processes:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def below(process: int) -> list[int]:
    """Return all descendants of a process."""
    paths = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                paths += [int(child), *below(int(child))]
    return paths


def measured(folder: Path, arguments: list[str], workers: list[int] | None = None) -> Run:
    """Run the command over a folder; `workers` are processes that run already."""
    out = folder.parent / "out.json"
    page = folder.parent / "out.html"
    command = [sys.executable, "-m", "traceview", "fleet", str(folder), "--json", str(out), "--html", str(page), "-q"]
    standing = [process for root in workers or [] for process in (root, *below(root))]
    used = processor_time(standing) + ended_children()
    begin = time.monotonic()
    process = subprocess.Popen([*command, *arguments], env=ENVIRONMENT, cwd=folder.parent)
    peaks = {"first": 0, "worker": 0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            peaks["first"] = max(peaks["first"], peak_mb(process.pid))
            peaks["worker"] = max([peaks["worker"], *map(peak_mb, standing or below(process.pid))])

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    seconds = time.monotonic() - begin
    used = processor_time(standing) + ended_children() - used
    done.set()
    watcher.join()
    if code:
        raise SystemExit(f"traceview fleet ended with {code}")
    digest = hashlib.sha256(out.read_bytes() + page.read_bytes()).hexdigest()
    return Run(seconds, used, peaks["first"], peaks["worker"], digest)


def ended_children() -> float:
    """Return the processor time of ended child processes and their children in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Run a Dask scheduler and two single-threaded workers on this machine."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
    commands = [[*scheduler, "--no-dashboard"], *[[*worker, "--local-directory", str(folder)]] * WORKERS]
    with (folder / "dask.log").open("w") as log:
        options = {"env": ENVIRONMENT, "stdout": log, "stderr": log, "cwd": folder}
        started = [subprocess.Popen(command, **options) for command in commands]
        try:
            from distributed import Client

            with Client(address, timeout="60s", set_as_default=False) as client:
                client.wait_for_workers(WORKERS, timeout=60)
            yield address, [process.pid for process in started[1:]]
        finally:
            for process in reversed(started):
                process.terminate()
            for process in started:
                process.wait(timeout=30)


def main() -> None:
    """Measure all sizes both ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument(
        "--reports", type=Path, nargs="+", default=sorted((ROOT / "samples" / "ranks").glob("slowhost*"))
    )
    parser.add_argument("--only", choices=("local", "dask"))
    options = parser.parse_args()
    print(f"{'reports':>8}{'read by':>18}{'wall':>9}{'CPU':>9}{'each':>9}{'first':>9}{'worker':>9}  same bytes")
    with tempfile.TemporaryDirectory() as name:
        reports = unpacked(Path(name), options.reports)
        for size in options.sizes:
            folder = links(Path(name), reports, size)
            runs: dict[str, Run] = {}
            if options.only != "dask":
                runs["2 local workers"] = measured(folder, ["--workers", str(WORKERS)])
            if options.only != "local":
                with cluster(Path(name)) as (address, workers):
                    runs["2 Dask workers"] = measured(folder, ["--scheduler", address], workers)
            same = "yes" if len({run.digest for run in runs.values()}) == 1 and len(runs) > 1 else "-"
            for how, run in runs.items():
                times = f"{run.seconds:>7.1f} s{run.processor:>7.1f} s{1000 * run.processor / size:>6.0f} ms"
                print(f"{size:>8,}{how:>18}{times}{run.first_mb:>6} MB{run.worker_mb:>6} MB  {same}", flush=True)


if __name__ == "__main__":
    main()
