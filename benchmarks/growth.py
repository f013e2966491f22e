"""Measure how the cost of an analysis grows with streams, GPUs, threads, names and ranges, at equal events.

    python benchmarks/growth.py                               each kind of group: few, then many
    python benchmarks/growth.py streams --groups 10 1000 8000
    python benchmarks/growth.py names --keep /tmp/captures    keep the captures, for a profile

A capture is samples/dual.sqlite repeated (benchmarks/repeat_capture.py), and its rows go to the groups in turn. Prints
the processor time (user plus system), its ratio to that of the fewest groups, peak memory and the size of the output,
for the JSON alone and for the page. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from measured import run  # noqa: E402
from repeat_capture import repeat_capture  # noqa: E402

ROOT = HERE.parent
SAMPLE = ROOT / "samples" / "dual.sqlite"
LIMIT_S = 600
WORK = tuple(f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET"))
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
ON_DEVICE = (*WORK, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT")
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {groups}) "
NEW_NAMES = NUMBERS + "INSERT INTO StringIds (id, value) SELECT 1000000 + i, 'name_' || i FROM n"
OTHER_COLUMNS = "vmId, name, busLocation, totalMemory, memoryBandwidth, clockRate, smCount, chipName, computeMajor"


class Kind(NamedTuple):
    """A kind of group: the statements that deal rows to `{groups}` of it, repetitions of the sample, and the groups."""

    statements: tuple[str, ...]
    times: int
    groups: tuple[int, ...]


KINDS = {
    "streams": Kind(tuple(f"UPDATE {each} SET streamId = 1000 + rowid % {{groups}}" for each in WORK), 12, (10, 1000)),
    "devices": Kind(
        (
            *(f"UPDATE {t} SET deviceId = rowid % {{groups}}, contextId = 1 + rowid % {{groups}}" for t in ON_DEVICE),
            f"{NUMBERS} INSERT INTO TARGET_INFO_GPU (id, cuDevice, {OTHER_COLUMNS}) "
            f"SELECT i, i, {OTHER_COLUMNS} FROM n, TARGET_INFO_GPU WHERE i > 0",
        ),
        4,
        (8, 200),
    ),
    "threads": Kind((f"UPDATE {CALLS} SET globalTid = globalTid - rowid % {{groups}}",), 12, (10, 1000)),
    "names": Kind(
        (
            NEW_NAMES,
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET shortName = 1000000 + rowid % {groups}, "
            "demangledName = 1000000 + rowid % {groups}, mangledName = NULL",
        ),
        67,
        (1000, 400_000),
    ),
    "ranges": Kind(
        (
            NEW_NAMES,
            "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId, domainId) "
            f"SELECT start - 1, end + 1, 59, globalTid, 1000000 + rowid % {{groups}}, 0 FROM {CALLS}",
        ),
        12,
        (10, 100_000),
    ),
}


def write_capture(kind: str, groups: int, times: int, out: Path) -> None:
    """Write the events of the sample, repeated, in this number of groups."""
    repeat_capture(SAMPLE, times, out)
    with closing(sqlite3.connect(out)) as export, export:
        for statement in KINDS[kind].statements:
            export.execute(statement.format(groups=groups))


def measure(report: Path, page: bool) -> tuple[float, float, float]:
    """Return the processor time in seconds, the peak memory and the size of the output in MB."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        form = ["--html", str(out)] if page else ["--no-html", "--json", str(out)]
        command = [sys.executable, "-m", "traceview", "analyze", str(report), "--quiet", *form]
        cost = run(command, LIMIT_S, cwd=ROOT, stdout=subprocess.DEVNULL)
        if cost.code:
            sys.exit(f"{report.name}: {'stopped after ' + str(LIMIT_S) + ' s' if cost.stopped else 'failed'}")
        return cost.processor, cost.peak_bytes / 1e6, out.stat().st_size / 1e6


def main() -> None:
    """Measure the kinds that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--groups", type=int, nargs="+", help="numbers of groups, instead of those of each kind")
    parser.add_argument("--times", type=int, help="repetitions of the sample, instead of those of each kind")
    parser.add_argument("--keep", type=Path, help="the folder for the captures, instead of a temporary one")
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.kinds) - set(KINDS)):
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(KINDS)}")
    print("| groups | JSON alone | ratio | memory | size | the page | ratio | memory | size |")
    print("| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for kind in chosen.kinds:
            first: dict[bool, float] = {}
            for groups in chosen.groups or KINDS[kind].groups:
                report = (chosen.keep or Path(folder)) / f"{kind}_{groups}.sqlite"
                write_capture(kind, groups, chosen.times or KINDS[kind].times, report)
                cells = [f"{groups:,} {kind}"]
                for page in (False, True):
                    processor, memory, size = measure(report, page)
                    ratio = processor / first.setdefault(page, processor)
                    cells += [f"{processor:.2f} s", f"{ratio:.2f}", f"{memory:,.0f} MB", f"{size:,.1f} MB"]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
