"""benchmarks/studies/change_pairs.py measures each change of small programs without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_pairs_of_small_programs(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "benchmarks/studies/change_pairs.py"),
        str(tmp_path),
        "--tiny",
        "--steps",
        "2",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    measured = json.loads((tmp_path / "measured.json").read_text())
    made = {change for times in measured.values() for change in times}
    assert made == {"base", "sync", "fused-optimizer", "load+pin", "batch", "sdpa", "bf16"}, result.stdout
    assert all(len(rounds) == 3 and min(rounds) > 0 for times in measured.values() for rounds in times.values())
    assert {file.name for file in tmp_path.glob("*.gz")} == {f"{name}.json.gz" for name in measured}
