"""Measure the peak memory of each use of a capture, in a process of its own, and of the merge of many ranks.

    python benchmarks/memory.py                               1.0 million kernels, repeated from samples/dual.sqlite
    python benchmarks/memory.py --times 1670                  10 million kernels
    python benchmarks/memory.py --report REPORT               another capture
    python benchmarks/memory.py --ranks 100 300 1000          also merge the results of so many ranks

Prints wall time, processor time (user plus system) of all cores, peak memory, and the size of the output. The results
of ranks are as large as they get, of 10,000 collectives and 2,000 iterations, made from the four reports of
samples/ranks/slowhost_rank*. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from measured import run  # noqa: E402
from repeat_capture import repeated_sample  # noqa: E402

if TYPE_CHECKING:
    from traceview.intervals import Times
    from traceview.model.fleet import ReportResult

ROOT = HERE.parent
LIMIT_S = 3600
READ = "import sys; from traceview.pipeline import open_trace; open_trace(sys.argv[1])"
PERIOD = 100_000_000  # ns from one iteration to the next
RANK = 7_654_321  # ns by which the clock of each rank is ahead: ranks with equal times count as copies of one capture


class Use(NamedTuple):
    """A use of a capture: the command after Python, with {report} and {out}."""

    name: str
    command: tuple[str, ...]


def of_traceview(*arguments: str) -> tuple[str, ...]:
    """Return the command of traceview with these arguments."""
    return ("-m", "traceview", *arguments, "--quiet")


USES = (
    Use("reading alone", ("-c", READ, "{report}")),
    Use("analyze, JSON", of_traceview("analyze", "{report}", "--no-html", "--json", "{out}")),
    Use("analyze, page", of_traceview("analyze", "{report}", "--html", "{out}")),
    Use("export, perfetto", of_traceview("export", "{report}", "--format", "perfetto", "-o", "{out}.pftrace")),
    Use("export, packed", of_traceview("export", "{report}", "--format", "perfetto", "-o", "{out}.pftrace.gz")),
    Use("export, parquet", of_traceview("export", "{report}", "--format", "parquet", "-o", "{out}")),
)


def measure(use: Use, report: Path) -> str:
    """Run a use of a capture, and return its row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        command = [word.format(report=report, out=f"{folder}/out") for word in use.command]
        cost = run([sys.executable, *command], LIMIT_S, cwd=ROOT, stdout=subprocess.DEVNULL)
        if cost.code:
            sys.exit(f"{use.name}: {'stopped' if cost.stopped else 'failed'}")
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 1e6
    times = f"{cost.seconds:.1f} s | {cost.processor:.1f} s | {cost.peak_bytes / 1e6:,.0f} MB"
    return f"| {use.name} | {times} | {f'{size:,.0f} MB' if size else ''} |"


def large_result(report: ReportResult, shift: int) -> ReportResult:
    """Return the result of one rank with the most collectives and iterations, on a clock that is `shift` ns ahead."""
    import numpy as np

    from traceview.ranks.collectives import MAX_COLLECTIVES
    from traceview.ranks.iterations import MAX_ITERATIONS

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
        start=rank.start + shift,
    )
    return replace(report, ranks=(large,))


def merge_ranks(count: int) -> None:
    """Merge the results of ranks in this process, and print the peak memory after each step."""
    from traceview.ranks.measure_report import measure_report
    from traceview.ranks.merge import merge
    from traceview.report.fleet import render, to_json

    reports = [measure_report(path) for path in sorted((ROOT / "samples" / "ranks").glob("slowhost*"))]
    begin, peaks = time.monotonic(), [peak_mb()]
    results = [large_result(reports[index % len(reports)], RANK * index) for index in range(count)]
    peaks.append(peak_mb())
    fleet = merge([f"rank{index:04}.sqlite" for index in range(count)], results)
    seconds, size = time.monotonic() - begin, sum(map(len, (to_json(fleet), render(fleet)))) // 10**6
    peaks.append(peak_mb())
    memory = "{:,} MB before, {:,} MB with the results, {:,} MB at the end".format(*peaks)
    print(f"{count:,} ranks merged in {seconds:.1f} s: {memory}, with {size} MB of JSON and page", flush=True)


def peak_mb() -> int:
    """Return the peak resident memory of this process so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1000 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, help="the capture, instead of a made one")
    parser.add_argument("--times", type=int, default=167, help="repetitions of the sample (default 167)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[], help="numbers of ranks to merge")
    chosen = parser.parse_args()
    report = (chosen.report or repeated_sample(chosen.times)).resolve()
    print(f"| {report.name} | wall | processor | peak | output |\n| :--- | ---: | ---: | ---: | ---: |")
    for use in USES:
        print(measure(use, report), flush=True)
    for count in chosen.ranks:  # each in a process of its own
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}"}
        subprocess.run(
            [sys.executable, "-c", f"import memory; memory.merge_ranks({count})"], env=environment, check=True
        )


if __name__ == "__main__":
    main()
