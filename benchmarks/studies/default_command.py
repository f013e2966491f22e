#!/usr/bin/env python3
"""Capture the trainer's default command, with and without `--strategy serial`, and print the figures.

    python benchmarks/studies/default_command.py capture FOLDER           on a machine with a GPU and nsys
    python benchmarks/studies/default_command.py table FOLDER             anywhere, with .sqlite exports in FOLDER
    python benchmarks/studies/default_command.py table FOLDER --json OUT.json

`capture` runs each command three times: without a profiler, with a capture of the full run, and with a capture of steps
20 to 50. It exports each report if nsys has its importer. Otherwise it leaves a .qdstrm for QdstrmImporter.
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

ROOT = Path(__file__).resolve().parents[2]
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
    """Run all commands without a profiler and under nsys, and keep their output."""
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
    """Return figures of a capture from `traceview analyze`; shares refer to the time from first to last GPU work."""
    report = folder / f"{name}_{what}.sqlite"
    command = (sys.executable, "-m", "traceview", "analyze", str(report), "--json", "-", "--no-html", "--quiet")
    analysis = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    device = analysis["devices"][0]
    window = device["window_ns"][1] - device["window_ns"][0]
    copies = [item for item in device["copies"] if item["kind"] == "h2d"]
    steps = [item for item in analysis["iterations"]["per_iteration"] if not item["skipped"]]
    length = (steps[-1]["end_ns"] - steps[0]["start_ns"]) / len(steps)
    return {
        "command": name,
        "captured": what,
        "gpu": device["name"],
        "busy": device["busy_ns"] / window,
        "compute": device["compute_ns"] / window,
        "copies_hidden": sum(item["overlapped_ns"] for item in copies) / sum(item["busy_ns"] for item in copies),
        "step_ms": length / 1e6,
        "median_iteration_ms": statistics.median(item["wall_ns"] for item in steps) / 1e6,
        "step_ms_without_nsys": _own_step_ms(folder / f"{name}.log"),
    }


def _own_step_ms(log: Path) -> float | None:
    """Return the last "ms/step" that the trainer printed."""
    printed = re.findall(r"([\d.]+) ms/step", log.read_text()) if log.is_file() else []
    return float(printed[-1]) if printed else None


def table(rows: list[dict[str, Any]]) -> str:
    """Return the Markdown table."""
    lines = [f"| {' | '.join(HEAD)} |", "| --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for row in rows:
        shares = (f"{row[name]:.1%}" for name in ("busy", "compute", "copies_hidden"))
        own = row["step_ms_without_nsys"]
        times = (f"{row['step_ms']:.1f}", "-" if own is None else f"{own:.1f}")
        lines.append(f"| {' | '.join((row['command'], row['captured'], *shares, *times))} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the arguments; capture, or print the table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("capture", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nsys", default="nsys")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.what == "capture":
        capture(folder, options.nsys)
        return
    rows = [figures(folder, name, what) for name in COMMANDS for what in CAPTURES]
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
