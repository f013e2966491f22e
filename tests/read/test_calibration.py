"""Calibration files: what nsys adds to calls on a machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.captures import sample
from traceview.errors import ReportError
from traceview.model.analysis import Iterations
from traceview.model.unprofiled import CALIBRATED_SCALE, CALIBRATION, ESTIMATE
from traceview.pipeline import analyze
from traceview.read.calibration import FORMAT, VERSION, costs_beside, read_calibration

FIGURES = {"scale": 2.0, "scale_range": [1.5, 3.0], "kernel_gap_ns": 200}


def written(folder: Path, **changes: Any) -> Path:
    document = {"format": FORMAT, "version": VERSION, "gpu": "NVIDIA H200", **FIGURES} | changes
    path = folder / CALIBRATION
    path.write_text(json.dumps(document))
    return path


def test_costs_of_a_calibration(tmp_path: Path) -> None:
    costs = read_calibration(written(tmp_path))
    assert costs.source == "calibration"
    low, middle, high = CALIBRATED_SCALE
    assert costs.scale == pytest.approx((low * 1.5**0.5, middle * 2**0.5, high * 3**0.5))
    assert costs.kernel_gap.low < costs.kernel_gap.middle == 200 < costs.kernel_gap.high


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "else"},
        {"version": 1},
        {"scale_range": [1]},
        {"scale_range": [1, 2, 3]},
        {"scale": []},
        {"scale": -1},
        {"scale": float("nan")},
        {"kernel_gap_ns": "a"},
        {"kernel_gap_ns": None},
    ],
)
def test_other_content_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ReportError, match="run `traceview doctor --calibrate` again"):
        read_calibration(written(tmp_path, **changes))


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"\xff\xfe", b"0" * (1 << 21)])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ReportError, match=r"x\.json"):
        read_calibration(path)
    with pytest.raises(ReportError, match="cannot be read"):
        read_calibration(tmp_path / "missing.json")


def test_calibration_beside_a_report_is_used(tmp_path: Path) -> None:
    report = tmp_path / "dual.sqlite"
    shutil.copy(sample("dual.sqlite"), report)
    assert costs_beside(report) is ESTIMATE
    written(tmp_path)
    iterations = analyze(report).iterations
    assert isinstance(iterations, Iterations) and iterations.unprofiled is not None
    assert iterations.unprofiled.source == "calibration"
