"""Time and memory of `traceview fleet` over many reports: links to real ones, read by two local workers or by Dask.

    python benchmarks/fleet_scale.py [--sizes 100 300 1000] [--reports FILE...] [--only local|dask]

Prints one row a size: wall time, processor time, the same for each report, peak memory of the first process and of
the largest worker, and whether both ways gave the same bytes. The links are names for the same few reports, so the
disk is not measured.
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
    """One run: seconds of wall and of all processors, peak MB of first process and largest worker, a digest."""

    seconds: float
    processor: float
    first_mb: int
    worker_mb: int
    digest: str


def unpacked(folder: Path, reports: list[Path]) -> list[Path]:
    """Return the reports, those that are packed with xz unpacked: that is not what is measured."""
    found = []
    for report in reports:
        plain = report.resolve()
        if report.suffix == ".xz":
            plain = folder / report.stem
            plain.write_bytes(lzma.decompress(report.read_bytes()))
        found.append(plain)
    return found


def links(folder: Path, reports: list[Path], size: int) -> Path:
    """Make a folder of so many names for the given reports, in turn."""
    made = folder / f"of_{size}"
    made.mkdir()
    for number in range(size):
        (made / f"rank{number:04}.sqlite").symlink_to(reports[number % len(reports)])
    return made


def peak_mb(process: int) -> int:
    """Return a process's peak resident memory so far; 0 where it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) // 1024
    return 0


def processor_time(processes: list[int]) -> float:
    """Return the processor time that running processes have used, in seconds."""
    ticks = 0
    for process in processes:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def below(process: int) -> list[int]:
    """Return all processes that a process began, and theirs."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *below(int(child))]
    return found


def measured(folder: Path, arguments: list[str], workers: list[int] | None = None) -> Run:
    """Run the command over a folder; `workers` are processes that were there before."""
    out = folder.parent / "out.json"
    page = folder.parent / "out.html"
    command = [sys.executable, "-m", "traceview", "fleet", str(folder), "--json", str(out), "--html", str(page), "-q"]
    standing = [one for root in workers or [] for one in (root, *below(root))]
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
    """Return the processor time of the processes that have ended here, and theirs, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Have a Dask scheduler and two workers of one thread each on this machine."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
    commands = [[*scheduler, "--no-dashboard"], *[[*worker, "--local-directory", str(folder)]] * WORKERS]
    with (folder / "dask.log").open("w") as log:
        started = [subprocess.Popen(one, env=ENVIRONMENT, stdout=log, stderr=log, cwd=folder) for one in commands]
        try:
            from distributed import Client

            with Client(address, timeout="60s", set_as_default=False) as client:
                client.wait_for_workers(WORKERS, timeout=60)
            yield address, [one.pid for one in started[1:]]
        finally:
            for one in reversed(started):
                one.terminate()
            for one in started:
                one.wait(timeout=30)


def main() -> None:
    """Measure every size both ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument(
        "--reports", type=Path, nargs="+", default=sorted((ROOT / "samples" / "ranks").glob("slowhost*"))
    )
    parser.add_argument("--only", choices=("local", "dask"))
    asked = parser.parse_args()
    print(f"{'reports':>8}{'read by':>18}{'wall':>9}{'CPU':>9}{'each':>9}{'first':>9}{'worker':>9}  same bytes")
    with tempfile.TemporaryDirectory() as name:
        reports = unpacked(Path(name), asked.reports)
        for size in asked.sizes:
            folder = links(Path(name), reports, size)
            runs: dict[str, Run] = {}
            if asked.only != "dask":
                runs["2 local workers"] = measured(folder, ["--workers", str(WORKERS)])
            if asked.only != "local":
                with cluster(Path(name)) as (address, workers):
                    runs["2 Dask workers"] = measured(folder, ["--scheduler", address], workers)
            same = "yes" if len({run.digest for run in runs.values()}) == 1 and len(runs) > 1 else "-"
            for how, run in runs.items():
                times = f"{run.seconds:>7.1f} s{run.processor:>7.1f} s{1000 * run.processor / size:>6.0f} ms"
                print(f"{size:>8,}{how:>18}{times}{run.first_mb:>6} MB{run.worker_mb:>6} MB  {same}", flush=True)


if __name__ == "__main__":
    main()
