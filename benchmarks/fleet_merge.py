"""Measure time and memory of the merge of many ranks.

    python benchmarks/fleet_merge.py [--sizes 8 64 256 1000] [--collectives 8800] [--workers 2 [--dask]]

Prints a row for each size: seconds to receive the headers (which includes making the results), to merge and to write
JSON and page; the peak memory of the first process before it received any header, after the merge and at the end; that
of the largest worker; and a digest of JSON and page. The ranks are the four reports of samples/ranks/slowhost_rank*,
whose iterations are repeated to the number of collectives, each on a clock of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from traceview.intervals import Times
from traceview.model.fleet import COLLECTIVE_COLUMNS, PackedColumn, ReportResult
from traceview.ranks import analyze_reports
from traceview.ranks.measure_report import measure_report
from traceview.ranks.merge import merge_reports
from traceview.ranks.partials import FleetReports
from traceview.ranks.worker import Job, Report
from traceview.report.fleet import render, to_json
from traceview.workers import Workers
from traceview.workers.cluster import DaskWorkers
from traceview.workers.processes import Processes

ROOT = Path(__file__).resolve().parent.parent
SECOND = 10**9


def repeated_report(report: ReportResult, collectives: int, period: int, shift: int) -> ReportResult:
    """Return a report of one rank with its iterations repeated every `period` ns, on a clock that is `shift` ahead."""
    [rank] = report.ranks
    assert rank.steps is not None
    column = {name: rank.collectives.column(name) for name in COLLECTIVE_COLUMNS}
    kept = np.flatnonzero(column["step"] >= 0)
    times = -(-collectives // len(kept))
    first, last = int(column["step"][kept].min()), int(column["step"][kept].max())

    def repeat(values: Times, by: int, offset: int = 0) -> Times:
        return (values + offset + by * np.arange(times, dtype=np.int64)[:, None]).reshape(-1)

    steps = replace(
        rank.steps,
        number=repeat(rank.steps.number, last - first + 1),
        figures=tuple(PackedColumn.pack(repeat(column.values(), 0)) for column in rank.steps.figures),
        idle=tuple(PackedColumn.pack(repeat(column.values(), 0)) for column in rank.steps.idle),
    )
    moved = {"start": (period, shift), "step": (last - first + 1, 0)}
    repeated = {name: repeat(values[kept], *moved.get(name, (0, 0))) for name, values in column.items()}
    columns = tuple(PackedColumn.pack(repeated[name][:collectives]) for name in COLLECTIVE_COLUMNS)
    # Different, because ranks with equal figures count as copies of one capture.
    changed = replace(rank, steps=steps, start=rank.start + shift, end=rank.end + shift)
    return replace(report, ranks=(replace(changed, collectives=replace(rank.collectives, columns=columns)),))


@cache
def sample_reports() -> list[ReportResult]:
    """Return the four reports of the samples."""
    return [measure_report(path, None, None) for path in sorted((ROOT / "samples/ranks").glob("slowhost*"))]


def made_result(index: int, collectives: int) -> ReportResult:
    """Return the result of a report."""
    reports = sample_reports()
    ranks = [report.ranks[0] for report in reports]
    period = max(rank.end for rank in ranks) - min(rank.start for rank in ranks) + SECOND
    shift = index * 7_654_321_987 % (100 * SECOND)
    return repeated_report(reports[index % len(reports)], collectives, period, shift)


@dataclass(frozen=True, slots=True)
class MadeReport(Report):
    """A report whose result is made."""

    collectives: int = 0

    def read(self) -> ReportResult | str:
        """Keep a made result like that of a report, and return it."""
        result = made_result(self.index, self.collectives)
        self.file().write_bytes(pickle.dumps(result, pickle.HIGHEST_PROTOCOL))
        return result


def peak_mb() -> int:
    """Return the peak resident memory of this process so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // 1024


def measure(size: int, collectives: int, workers: int, dask: bool) -> None:
    """Merge this many ranks in this process and its workers, and print the row."""
    sample_reports()
    files = [f"rank{index:04}.sqlite" for index in range(size)]
    before = peak_mb()
    with ExitStack() as stack:
        folder = None
        if dask:
            cluster = stack.enter_context(distributed_cluster(workers))
            opened: Workers = stack.enter_context(DaskWorkers(cluster.scheduler_address))
            client = stack.enter_context(cluster.get_client())
        else:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            opened = stack.enter_context(Processes(workers, "traceview.ranks.measure_report", threads=1))
        reports: list[Report] = [
            MadeReport(file, Job(), i, folder, "made", collectives=collectives) for i, file in enumerate(files)
        ]
        begin = time.perf_counter()
        headers, _ = analyze_reports._collect(files, reports, opened, lambda *_: None)
        received = time.perf_counter()
        run = partial(analyze_reports.measure_reports, opened)
        fleet = merge_reports(files, FleetReports([headers[index] for index in range(size)], reports, run))
        merged = time.perf_counter()
        at_merge = peak_mb()
        each = client.run(peak_mb).values() if dask else [opened.submit(peak_mb).result() for _ in range(workers)]
        worker_mb = max(each)
    digest = hashlib.sha256()
    for written in (to_json, render):
        digest.update(written(fleet).encode())
    end = time.perf_counter()
    times = "".join(f"{value:>9.2f} s" for value in (received - begin, merged - received, end - merged))
    print(
        f"{size:>6,}{times}{before:>8} MB{at_merge:>7} MB{peak_mb():>7} MB{worker_mb:>7} MB  {digest.hexdigest()[:12]}",
        flush=True,
    )


def distributed_cluster(workers: int) -> Any:
    """Start a cluster of single-threaded worker processes on this machine."""
    from distributed import LocalCluster

    return LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)


def main() -> None:
    """Measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 64, 256, 1000])
    parser.add_argument("--collectives", type=int, default=8800)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--dask", action="store_true", help="merge on a Dask cluster of this machine")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.sizes[0], options.collectives, options.workers, options.dask)
        return
    columns = (("receive", 11), ("merge", 11), ("write", 11), ("before", 11), ("merged", 10), ("peak", 10))
    heads = "".join(name.rjust(width) for name, width in (*columns, ("worker", 10)))
    print(f"{'ranks':>6}{heads}  digest", flush=True)
    for size in options.sizes:
        command = [sys.executable, __file__, "--one", "--sizes", str(size), "--collectives", str(options.collectives)]
        command += ["--workers", str(options.workers), *(["--dask"] if options.dask else [])]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    from fleet_merge import main as run  # workers import what they call by the name of its module

    run()
