#!/usr/bin/env python3
"""Capture the trainer's default command and the same with `--strategy serial`, and print what the captures show.

    python benchmarks/default_command.py capture FOLDER           on a machine with a GPU and nsys
    python benchmarks/default_command.py table FOLDER             anywhere, once FOLDER holds the .sqlite exports
    python benchmarks/default_command.py table FOLDER --json OUT.json

`capture` runs each command three times: without a profiler, captured whole, and captured from step 20 to 50. It exports
each report, where nsys has its importer. Elsewhere it leaves a .qdstrm for QdstrmImporter on another machine.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

TRAIN = (sys.executable, "-m", "instrument.train")
COMMANDS = {"default": (), "serial": ("--strategy", "serial")}
PROFILE = ("profile", "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none")
WINDOW = ("-c", "cudaProfilerApi", "--capture-range-end=stop")
CAPTURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "whole": ((), ()),
    "steps": (WINDOW, ("--capture", "20:50", "--steps", "50")),
}
HEAD = ("command", "captured", "GPU busy", "compute", "copies hidden", "ms a step", "ms without nsys")


def capture(folder: Path, nsys: str) -> None:
    """Run every command without a profiler and under nsys, and keep what it prints."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, flags in COMMANDS.items():
        _run((*TRAIN, *flags), folder / f"{name}.log")
        for what, (profiler, more) in CAPTURES.items():
            report = folder / f"{name}_{what}"
            command = (nsys, *PROFILE, *profiler, "-f", "true", "-o", str(report), *TRAIN, *flags, *more)
            _run(command, report.with_suffix(".log"))
            if report.with_suffix(".nsys-rep").is_file():
                export = ("export", "--type", "sqlite", "-f", "true", "-o", f"{report}.sqlite", f"{report}.nsys-rep")
                _run((nsys, *export), report.with_suffix(".export.log"))


def _run(command: tuple[str, ...], log: Path) -> None:
    with log.open("w") as file:
        code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    print(f"exit code {code}: {' '.join(command)}", flush=True)


def figures(folder: Path, name: str, what: str) -> dict[str, Any]:
    """Return the figures of one capture by `traceview analyze`; shares are of the time from first to last GPU work."""
    report = folder / f"{name}_{what}.sqlite"
    command = (sys.executable, "-m", "traceview", "analyze", str(report), "--json", "-", "--no-html", "--quiet")
    analysis = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    device = analysis["devices"][0]
    window = device["window_ns"][1] - device["window_ns"][0]
    copies = [one for one in device["copies"] if one["kind"] == "h2d"]
    steps = [one for one in analysis["iterations"]["per_iteration"] if not one["skipped"]]
    length = (steps[-1]["end_ns"] - steps[0]["start_ns"]) / len(steps)
    return {
        "command": name,
        "captured": what,
        "gpu": device["name"],
        "busy": device["busy_ns"] / window,
        "compute": device["compute_ns"] / window,
        "copies_hidden": sum(one["overlapped_ns"] for one in copies) / sum(one["busy_ns"] for one in copies),
        "step_ms": length / 1e6,
        "median_iteration_ms": statistics.median(one["wall_ns"] for one in steps) / 1e6,
        "step_ms_without_nsys": _own_step_ms(folder / f"{name}.log"),
    }


def _own_step_ms(log: Path) -> float | None:
    """Return the last "ms/step" that the trainer printed."""
    said = re.findall(r"([\d.]+) ms/step", log.read_text()) if log.is_file() else []
    return float(said[-1]) if said else None


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows in Markdown."""
    lines = [f"| {' | '.join(HEAD)} |", "| --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for row in rows:
        shares = (f"{row[name]:.1%}" for name in ("busy", "compute", "copies_hidden"))
        own = row["step_ms_without_nsys"]
        times = (f"{row['step_ms']:.1f}", "-" if own is None else f"{own:.1f}")
        lines.append(f"| {' | '.join((row['command'], row['captured'], *shares, *times))} |")
    return "\n".join(lines)


def main() -> None:
    """Read the arguments; capture, or print the table and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("capture", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nsys", default="nsys")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.what == "capture":
        capture(folder, given.nsys)
        return
    rows = [figures(folder, name, what) for name in COMMANDS for what in CAPTURES]
    print(table(rows))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
