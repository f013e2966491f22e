#!/usr/bin/env python3
"""Compare predictions with captures made after the change.

    python benchmarks/whatif_pairs.py BEFORE.sqlite AFTER.sqlite CHANGES ...
    python benchmarks/whatif_pairs.py --list benchmarks/whatif_pairs.txt --folder samples/trainer

CHANGES are the names of changes made together, such as pin,prefetch,sync (docs/whatif.md). ranks=2:253 means two GPUs
that average 253 MB. AFTER may be several captures, separated by commas: the prediction is compared with their median.
A list has one such triple in each line; names are files of the folder, without .sqlite, and `#` begins a comment.
Predictions do not use AFTER. Prints a Markdown table; pairs with missing files are skipped and listed.
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from traceview import Analysis, analyze
from traceview.model.analysis import NotMeasured
from traceview.replay.changes import ranks as data_parallel
from traceview.replay.prediction import measured, predict, whatif

HEAD = """| before | after | changes | before, ms | predicted, ms | range | measured, ms | error | replay |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("triples", nargs="*", metavar="BEFORE AFTER CHANGES")
    parser.add_argument("--list", type=Path, dest="listed")
    parser.add_argument("--folder", type=Path, default=Path())
    options = parser.parse_args()
    if len(options.triples) % 3:
        parser.error("give BEFORE AFTER CHANGES, three for each pair")
    pairs = [tuple(options.triples[at : at + 3]) for at in range(0, len(options.triples), 3)]
    if options.listed:
        lines = (line.partition("#")[0].split() for line in options.listed.read_text().splitlines())
        pairs += [tuple(line) for line in lines if line]
    print(HEAD)
    missing = [pair for pair in pairs if not row(options.folder, *pair)]
    if missing:
        print(f"\nnot there: {', '.join(f'{before} → {after}' for before, after, _ in missing)}")


def row(folder: Path, before: str, after: str, changes: str) -> bool:
    """Print the row of a pair; return False if a file is missing."""
    files = (before, *after.split(","))
    paths = [folder / (name if name.endswith(".sqlite") else f"{name}.sqlite") for name in files]
    if not all(path.is_file() for path in paths):
        return False
    first, *runs = (opened(path) for path in paths)
    times = sorted(measured(run) for run in runs)
    names = [name for name in changes.split(",") if "=" not in name]
    more = [data_parallel(*ranks(name)) for name in changes.split(",") if "=" in name]
    prediction, truth = predict(first, names, more=more), int(median(times))
    low, high = prediction.low_ns / 1e6, prediction.high_ns / 1e6
    error = prediction.iteration_ns / truth - 1
    now, then = measured(first) / 1e6, prediction.iteration_ns / 1e6
    print(
        f"| {paths[0].stem} | {paths[1].stem} | {changes} | {now:.2f} | {then:.2f} | {low:.2f} to {high:.2f} "
        f"| {', '.join(f'{time / 1e6:.2f}' for time in times)} | {error:+.1%} | {replay_error(paths[0]):+.2%} |"
    )
    return True


def ranks(text: str) -> tuple[int, int]:
    """Parse ranks=2:253 into the number of GPUs and the bytes."""
    count, megabytes = text.partition("=")[2].split(":")
    return int(count), int(megabytes) * 10**6


@cache
def opened(path: Path) -> Analysis:
    """Analyse a file once. The captures after the change have the profiler's cost, so predictions keep it."""
    return analyze(path, costs=None)


@cache
def replay_error(path: Path) -> float:
    """Return the relative error of the unchanged model."""
    prediction = whatif(opened(path))
    assert not isinstance(prediction, NotMeasured), f"{path.name} has iterations"
    return prediction.error


if __name__ == "__main__":
    main()
