"""End-to-end test on a CPU: nsys profiles the trainer, and `traceview analyze` finds steps and phases."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("polars")
pytest.importorskip("nvtx")

import polars as pl

from instrument import ranges
from instrument.trainer.capture import missing_ranges_reason
from tests.profiling import profiled, run
from traceview.pipeline import open_trace

STEPS = 6
TRAIN = (
    *(sys.executable, "-m", "instrument.train", "--device", "cpu", "--precision", "fp32", "--sync", 2),
    *("--layers", 1, "--width", 16, "--heads", 2, "--features", 8, "--vocabulary", 32),
    *("--batch", 4, "--sequence", 8, "--samples", 64),
)

PHASES = (ranges.DATA_LOAD, ranges.COPY, ranges.FORWARD, ranges.BACKWARD, ranges.OPTIMIZER)


@pytest.fixture(scope="module")
def told(nsys: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return the output of the profiled trainer, and the export of its capture."""
    if problem := missing_ranges_reason():
        pytest.skip(problem)
    report = tmp_path_factory.mktemp("profiled") / "report"
    said = profiled(nsys, report.with_suffix(".nsys-rep"), *TRAIN, "--steps", STEPS)
    run(nsys, "export", "-t", "sqlite", "-o", report.with_suffix(".sqlite"), report.with_suffix(".nsys-rep"))
    return said, report.with_suffix(".sqlite")


@pytest.fixture(scope="module")
def analyzed(told: tuple[str, Path]) -> Mapping[str, Any]:
    capture = told[1]
    json_path = capture.with_name("analysis.json")
    run(sys.executable, "-m", "traceview", "analyze", capture, "--json", json_path)
    assert capture.with_name("report.overlap.html").stat().st_size > 0
    found: Mapping[str, Any] = json.loads(json_path.read_text())
    return found


def test_trainer_prints_that_it_is_done(told: tuple[str, Path]) -> None:
    assert told[0].count(f"instrument: done at step {STEPS}") == 1, told[0]


def test_iterations_are_found(analyzed: Mapping[str, Any]) -> None:
    found = analyzed["iterations"]
    assert (found["range"], found["count"]) == ("iteration #", STEPS)
    assert [one["name"] for one in found["per_iteration"]] == [ranges.iteration_name(step) for step in range(STEPS)]
    assert all(one["wall_ns"] > 0 for one in found["per_iteration"])


def test_phases_are_counted(analyzed: Mapping[str, Any]) -> None:
    whole = {one["name"] for one in analyzed["iterations"]["per_iteration"]}
    phases = {use["name"]: use["count"] for use in analyzed["nvtx"] if use["name"] not in whole}
    phases = {name: count for name, count in phases.items() if not name.startswith("gc generation")}
    assert phases == dict.fromkeys(PHASES, STEPS) | {ranges.SYNCHRONIZE: STEPS // 2}
    assert all(use["host_ns"] > 0 and use["domain"] == "" for use in analyzed["nvtx"])


def test_phases_are_inside_their_iteration(told: tuple[str, Path]) -> None:
    """Phases and iterations are ranges of one thread, so this holds however slow the machine is."""
    ranges_of_steps = open_trace(told[1]).ranges.with_columns(pl.col("name").cast(pl.String))
    is_iteration = pl.col("name").is_in([ranges.iteration_name(step) for step in range(STEPS)])
    iterations = ranges_of_steps.filter(is_iteration).sort("start")
    phases = ranges_of_steps.filter(~is_iteration, pl.col("name").is_in(PHASES))
    inside = phases.sort("start").join_asof(iterations.rename({"end": "iteration_end"}), on="start")
    assert len(iterations) == STEPS and len(inside) > STEPS
    assert (inside["end"] <= inside["iteration_end"]).all()


def test_missing_gpu_work_is_a_note(analyzed: Mapping[str, Any]) -> None:
    assert (analyzed["devices"], analyzed["findings"]) == ([], [])
    assert [note["text"] for note in analyzed["notes"] if note["id"] == "no_gpu_work"]
    assert all(use["operation_count"] == 0 for use in analyzed["nvtx"])


def test_unrecorded_nvtx_version_is_reported(nsys: str, tmp_path: Path) -> None:
    metadata = tmp_path / "nvtx-0.2.12.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: nvtx\nVersion: 0.2.12\n")
    found_first = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    said = profiled(nsys, tmp_path / "report.nsys-rep", *TRAIN, "--steps", 0, PYTHONPATH=found_first)
    assert "instrument: nsys 2022.4 to 2024.2 record no ranges of nvtx 0.2.12" in said


def test_capture_has_the_flops_of_each_step(told: tuple[str, Path]) -> None:
    marks = open_trace(told[1]).sizes.marks
    assert len(marks) == STEPS
    assert marks["flops"].n_unique() == 1 and marks["flops"][0] > 0
