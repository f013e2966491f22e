"""Measure time and memory of `traceview fleet` over many ranks: local workers, Dask, and the merge alone.

    python benchmarks/fleet_scale.py [--sizes 100 300 1000] [--only local|dask|merge]

The Dask cluster is one of processes that starts without workers and grows to two. Prints a row for each size: wall
time, processor time, both per report, peak memory of the main process and of the largest worker, and whether both ways
gave the same bytes; then what `fleet` says. The reports are links to the four of a real run, on nodes of 8 ranks. One
rank of 50 is the slow one of that run. Disk reads are not measured.

`merge` makes results as large as they get, of 10,000 collectives and 2,000 iterations, and merges them in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import lzma
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from traceview.intervals import Times
from traceview.model.fleet import ReportResult
from traceview.ranks.collectives import MAX_COLLECTIVES
from traceview.ranks.iterations import MAX_ITERATIONS
from traceview.ranks.measure_report import measure_report
from traceview.ranks.merge import merge
from traceview.report.fleet import render, to_json

ROOT = Path(__file__).resolve().parent.parent
PERIOD = 100_000_000  # ns from one iteration to the next
WORKERS, RANKS_OF_A_NODE, RANKS_FOR_A_SLOW_ONE, NODES = 2, 8, 50, 16
CLUSTER = f"""if True:
    from distributed import LocalCluster
    with LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=None) as cluster:
        cluster.adapt(minimum=0, maximum={WORKERS})
        print(cluster.scheduler_address, flush=True)
        input()
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}


class Run(NamedTuple):
    """A run: wall and processor time in seconds, peak MB of the main process and the largest worker, its results."""

    seconds: float
    processor: float
    first_mb: int
    worker_mb: int
    digest: str
    text: str


def reports_of_nodes(folder: Path) -> list[list[Path]]:
    """Unpack the reports of the run once for each node, with its name in them, the slow rank first."""
    packed = sorted((ROOT / "samples" / "ranks").glob("slowhost*"), key=lambda path: "rank1" not in path.name)
    nodes = []
    for node in range(NODES):
        reports = [folder / f"{node}_{path.stem}" for path in packed]
        for path, report in zip(packed, reports, strict=True):
            report.write_bytes(lzma.decompress(path.read_bytes()))
            with contextlib.closing(sqlite3.connect(report)) as database, database:
                database.execute("CREATE TABLE IF NOT EXISTS TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
                database.execute(
                    "INSERT INTO TARGET_INFO_SYSTEM_ENV (name, value) VALUES ('Hostname', ?)", (f"node{node}",)
                )
        nodes.append(reports)
    return nodes


def links(folder: Path, nodes: list[list[Path]], size: int) -> Path:
    """Create a folder with a link to a report for each rank."""
    made = folder / f"of_{size}"
    made.mkdir()
    for number in range(size):
        slow, *usual = nodes[number // RANKS_OF_A_NODE % NODES]
        is_slow = number % RANKS_FOR_A_SLOW_ONE == RANKS_FOR_A_SLOW_ONE // 2
        (made / f"rank{number:04}.sqlite").symlink_to(slow if is_slow else usual[number % len(usual)])
    return made


def peak_mb(process: int) -> int:
    """Return the peak resident memory of a process so far; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) // 1024
    return 0


def processor_time(root: int | None) -> float:
    """Return the processor time in seconds of a process, its descendants, and those that ended; 0 for None."""
    ticks = 0
    for process in [] if root is None else [root, *below(root)]:
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def below(process: int) -> list[int]:
    """Return all descendants of a process."""
    paths = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                paths += [int(child), *below(int(child))]
    return paths


def measured(folder: Path, arguments: list[str], cluster: int | None = None) -> Run:
    """Run the command over a folder; `cluster` is the process whose children are its workers."""
    out = folder.parent / "out.json"
    page = folder.parent / "out.html"
    command = [sys.executable, "-m", "traceview", "fleet", str(folder), "--json", str(out), "--html", str(page)]
    used = processor_time(cluster)
    begin = time.monotonic()
    process = subprocess.Popen(
        [*command, *arguments], env=ENVIRONMENT, cwd=folder.parent, stdout=subprocess.PIPE, text=True
    )
    peaks = {"first": 0, "worker": 0, "used": 0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            peaks["first"] = max(peaks["first"], peak_mb(process.pid))
            peaks["used"] = max(peaks["used"], processor_time(process.pid))
            peaks["worker"] = max([peaks["worker"], *map(peak_mb, below(cluster or process.pid))])

    watcher = threading.Thread(target=watch)
    watcher.start()
    text, _ = process.communicate()
    code = process.returncode
    seconds = time.monotonic() - begin
    used = processor_time(cluster) - used + peaks["used"]
    done.set()
    watcher.join()
    if code:
        raise SystemExit(f"traceview fleet ended with {code}")
    digest = hashlib.sha256(out.read_bytes() + page.read_bytes()).hexdigest()
    return Run(seconds, used, peaks["first"], peaks["worker"], digest, text)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a Dask cluster that starts workers on demand; yield its address and its process."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": ENVIRONMENT, "cwd": folder}
    with subprocess.Popen([sys.executable, "-c", CLUSTER], **options) as process:
        yield process.stdout.readline().strip(), process.pid
        process.communicate("\n", timeout=60)


def large_result(report: ReportResult, shift: int) -> ReportResult:
    """Return the result of one rank with the most collectives and iterations, on a clock that is `shift` ns ahead."""
    [rank] = report.ranks
    steps, collectives = rank.steps, rank.collectives
    number = np.arange(MAX_ITERATIONS)
    rows = np.flatnonzero(collectives.step == steps.number[len(steps.number) // 2])
    rows = rows[np.arange(MAX_COLLECTIVES // MAX_ITERATIONS) % len(rows)]

    def repeated(values: Times, by: int = 0) -> Times:
        return (values[rows] + by * number[:, None]).reshape(-1)

    def cycled(values: Times) -> Times:
        return np.take(values, number % values.shape[-1], axis=-1)

    moved = {name: repeated(getattr(collectives, name), PERIOD) + shift for name in ("start", "end")}
    same = {name: repeated(getattr(collectives, name)) for name in ("kind", "channel", "hidden")}
    step = np.repeat(number, len(rows))
    figures = ("wall", "compute", "exposed_communication", "kernels", "idle")
    large = replace(
        rank,
        steps=replace(steps, number=number, **{name: cycled(getattr(steps, name)) for name in figures}),
        collectives=replace(collectives, step=step, **moved, **same),
        start=rank.start + shift,  # different, because ranks with equal figures count as copies of one capture
    )
    return replace(report, ranks=(large,))


def merge_large(size: int) -> None:
    """Merge results in this process and print times and peak memory."""
    reports = [measure_report(path) for path in sorted((ROOT / "samples" / "ranks").glob("slowhost*"))]
    begin, before = time.monotonic(), peak_mb(os.getpid())
    results = [large_result(reports[index % len(reports)], 7_654_321 * index) for index in range(size)]
    made = peak_mb(os.getpid())
    fleet = merge([f"rank{index:04}.sqlite" for index in range(size)], results)
    merged, seconds = peak_mb(os.getpid()), time.monotonic() - begin
    texts = to_json(fleet), render(fleet)
    print(
        f"{size:>8,} merged in {seconds:.1f} s; peak {before} MB before, {made} MB with the results, {merged} MB "
        f"merged, {peak_mb(os.getpid())} MB with {sum(map(len, texts)) // 10**6} MB of JSON and page",
        flush=True,
    )


def main() -> None:
    """Measure all sizes both ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--only", choices=("local", "dask", "merge"))
    options = parser.parse_args()
    if options.only == "merge":
        for size in options.sizes:  # each in a process of its own
            call = f"import fleet_scale; fleet_scale.merge_large({size})"
            environment = ENVIRONMENT | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'benchmarks'}"}
            subprocess.run([sys.executable, "-c", call], env=environment, check=True)
        return
    print(f"{'reports':>8}{'read by':>18}{'wall':>9}{'CPU':>9}{'each':>9}{'first':>9}{'worker':>9}  same bytes")
    with tempfile.TemporaryDirectory() as name:
        nodes = reports_of_nodes(Path(name))
        for size in options.sizes:
            folder = links(Path(name), nodes, size)
            runs: dict[str, Run] = {}
            if options.only != "dask":
                runs["2 local workers"] = measured(folder, ["--workers", str(WORKERS)])
            if options.only != "local":
                with cluster(Path(name)) as (address, process):
                    runs["2 Dask workers"] = measured(folder, ["--scheduler", address], process)
            same = "yes" if len({run.digest for run in runs.values()}) == 1 and len(runs) > 1 else "-"
            for how, run in runs.items():
                times = f"{run.seconds:>7.1f} s{run.processor:>7.1f} s{1000 * run.processor / size:>6.0f} ms"
                print(f"{size:>8,}{how:>18}{times}{run.first_mb:>6} MB{run.worker_mb:>6} MB  {same}", flush=True)
            print(next(iter(runs.values())).text)


if __name__ == "__main__":
    main()
