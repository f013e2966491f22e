"""Measure time and memory of the merge of many ranks.

    python benchmarks/fleet_merge.py [--sizes 8 64 256 1000] [--collectives 8800]

Prints a row for each size: processor seconds to receive the results, to merge them and to write JSON and page, the peak
memory of the process before it received any and at the end, and a digest of JSON and page. The ranks are the four
reports of samples/ranks/slowhost_rank*, whose iterations are repeated to the number of collectives, each on a clock of
its own.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from traceview.fleet import analyze_reports
from traceview.fleet.measure_report import measure_report
from traceview.fleet.merge import merge
from traceview.fleet.serialization import serialize
from traceview.intervals import Times
from traceview.model.collectives import COLLECTIVE_COLUMNS, PackedColumn
from traceview.model.fleet import ReportResult
from traceview.report.fleet import render
from traceview.report.fleet.document import to_json

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


def packed_results(reports: Sequence[ReportResult], size: int, collectives: int) -> Iterator[tuple[int, bytes]]:
    """Yield what workers send, as it is read."""
    ranks = [report.ranks[0] for report in reports]
    period = max(rank.end for rank in ranks) - min(rank.start for rank in ranks) + SECOND
    for index in range(size):
        shift = index * 7_654_321_987 % (100 * SECOND)
        yield index, serialize(repeated_report(reports[index % len(reports)], collectives, period, shift))


def peak_mb() -> int:
    """Return the peak resident memory of this process so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // 1024


def measure(size: int, collectives: int) -> None:
    """Merge this many ranks in this process and print the row."""
    reports = [measure_report(path, None, None) for path in sorted((ROOT / "samples/ranks").glob("slowhost*"))]
    files = [f"rank{index:04}.sqlite" for index in range(size)]
    before = peak_mb()
    begin = time.process_time()
    results, _ = analyze_reports._collect(
        [Path(file) for file in files], files, packed_results(reports, size, collectives), lambda *_: None
    )
    received = time.process_time()
    fleet = merge(files, [results[index] for index in sorted(results)])
    merged = time.process_time()
    digest = hashlib.sha256((to_json(fleet) + render(fleet)).encode()).hexdigest()[:12]
    written = time.process_time()
    times = "".join(f"{value:>9.2f} s" for value in (received - begin, merged - received, written - merged))
    print(f"{size:>6,}{times}{before:>8} MB{peak_mb():>7} MB  {digest}", flush=True)


def main() -> None:
    """Measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 64, 256, 1000])
    parser.add_argument("--collectives", type=int, default=8800)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.sizes[0], options.collectives)
        return
    print(f"{'ranks':>6}{'receive':>11}{'merge':>11}{'write':>11}{'before':>11}{'peak':>10}  digest", flush=True)
    for size in options.sizes:
        command = [sys.executable, __file__, "--one", "--sizes", str(size), "--collectives", str(options.collectives)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
