"""benchmarks/studies/change_pairs.py measures each change of small programs without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_pairs_of_small_programs(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/studies/change_pairs.py"), "--tiny", "--steps", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    measured = [line for line in result.stdout.splitlines() if "ms before" in line and "not predicted: no GPU" in line]
    made = {line.partition(":")[0].rpartition(", ")[2] for line in measured}
    assert made == {"sync", "fused-optimizer", "load+pin", "batch", "sdpa", "bf16"}, result.stdout
