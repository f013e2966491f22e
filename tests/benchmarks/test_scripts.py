"""Each benchmark script runs once on a small capture, as far as that takes seconds. No time is compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures import ROOT, sample

BENCHMARKS = ROOT / "benchmarks"
# Arguments, in which `{report}` is a small capture and `{folder}` an empty one, and a text that the output has.
RUNS = {
    "growth.py": ("--groups 2 --times 1", "2 ranges"),
    "memory.py": ("--report {report} --ranks 2", "2 ranks merged"),
    "measured.py": ("{folder}/result.json 60 true", ""),
    "plain_scan.py": ("{report}", "rows"),
    "plain_truth.py": ("{report}", "Truth("),
    "repeat_capture.py": ("{report} 2 {folder}/twice.sqlite", ""),
    "run": ("--report {report} --rounds 1 --stages --nsys=", "to page"),
    "unprofiled_pairs.py": ("{folder}", "0 of 0 hits, 0 in the range"),
    "whatif_pairs.py": ("{report} {report} pin,prefetch", "pin"),
    "whatif_ranges.py": ("", "inside"),
}
NOT_RUN = {
    "ask_agent.py": "asks an agent",
    "calibrate.py": "needs a GPU and nsys",
    "compare_tools": "takes a minute; tests/benchmarks/test_compare_tools.py calls its parts",
    "leak_check.py": "trains for minutes, with torch",
    "timeline": "needs a browser",
    "tool_questions.py": "is a part of compare_tools",
}


def test_every_script_runs_or_has_a_reason() -> None:
    scripts = {path.name for path in BENCHMARKS.iterdir() if path.suffix in ("", ".py") and path.is_file()}
    assert scripts == {*RUNS, *NOT_RUN}


@pytest.mark.parametrize("script", RUNS)
def test_script_runs(script: str, tmp_path: Path) -> None:
    arguments, expected = RUNS[script]
    words = [word.format(report=sample("serial.sqlite"), folder=tmp_path) for word in arguments.split()]
    command = [sys.executable, str(BENCHMARKS / script), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    assert expected in result.stdout
