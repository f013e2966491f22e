"""Tests that the samples have the events of their captures, and nothing of a machine."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests import test_scenarios
from tests.captures import analyzed, original, sample
from traceview.captures.redact import redact
from traceview.model.analysis import Iterations
from traceview.report.analysis import to_json

OF_THE_TRAINER = [f"trainer/{name}" for name in ("serial", "pinned", "prefetch", "staged", "graph", "ddp")]
SHARED = ["serial", "dual", "quad", "ddp2", "cudagraph"]
SCENARIOS = [f"scenarios/{name}" for name in test_scenarios.NAMES]
NAMES = [*SHARED, *OF_THE_TRAINER, *SCENARIOS]
EVENT_TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
    "PROFILER_OVERHEAD",
)


def rows(path: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    export = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        return export.execute(query, values).fetchall()
    finally:
        export.close()


def tables(path: Path) -> set[str]:
    return {name for (name,) in rows(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def texts(path: Path) -> list[str]:
    found = []
    for table in sorted(tables(path)):
        if not table.startswith("ENUM_"):
            for row in rows(path, f'SELECT * FROM "{table}"'):
                found += [value for value in row if isinstance(value, str) and value]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_samples_name_no_machine(name: str) -> None:
    path = sample(f"{name}.sqlite")
    private = {"ANALYSIS_FILE", "ProcessStreams", "TARGET_INFO_SESSION_START_TIME"}
    assert not tables(path) & private
    assert not [text for text in texts(path) if text.startswith("/") or "/tmp" in text or "=" in text]
    properties = {row[0] for row in rows(path, "SELECT name FROM TARGET_INFO_SYSTEM_ENV")}
    assert properties == {"NvDriverVersion", "CudaDriverVersion"}
    settings = {row[0] for row in rows(path, "SELECT name FROM META_DATA_CAPTURE")}
    assert not {setting for setting in settings if "COLLECT" not in setting and "TRACE" not in setting} - {
        "CAPTURE_EVENT_TYPE"
    }
    programs = {row[0] for row in rows(path, "SELECT name FROM PROCESSES")}
    assert programs <= {"python3", "python", "torchrun"}


@pytest.mark.parametrize("name", SHARED)
def test_samples_have_every_event(name: str) -> None:
    whole, scrubbed = original(f"h200_{name}.sqlite"), sample(f"{name}.sqlite")
    compared = [table for table in EVENT_TABLES if table in tables(whole)]
    assert "CUPTI_ACTIVITY_KIND_RUNTIME" in compared
    for table in compared:
        query = f'SELECT * FROM "{table}" ORDER BY rowid'
        assert rows(whole, query) == rows(scrubbed, query)


@pytest.mark.parametrize("name", SHARED)
def test_samples_have_the_figures_of_their_captures(name: str) -> None:
    whole = json.loads(to_json(analyzed(original(f"h200_{name}.sqlite"))))
    scrubbed = json.loads(to_json(analyzed(sample(f"{name}.sqlite"))))
    assert whole["devices"]
    assert whole.pop("report")["schema_version"] == scrubbed.pop("report")["schema_version"]
    assert whole == scrubbed


@pytest.mark.parametrize("name", SHARED)
def test_samples_are_the_output_of_redact(name: str, tmp_path: Path) -> None:
    """Earlier versions, which made the samples, kept more columns."""
    for path, out in ((original(f"h200_{name}.sqlite"), "made.sqlite"), (sample(f"{name}.sqlite"), "again.sqlite")):
        redact(path, tmp_path / out)
    assert (tmp_path / "made.sqlite").read_bytes() == (tmp_path / "again.sqlite").read_bytes()


@pytest.mark.parametrize(
    ("name", "finding", "steps"),
    [
        ("serial", "pageable_copies", 10),
        ("pinned", "shared_stream", 10),
        ("prefetch", "operation_gaps", 10),
        ("staged", "exposed_h2d", 10),
        ("graph", "exposed_h2d", 10),
        ("ddp", "exposed_communication", 16),
    ],
)
def test_trainer_samples_show_their_strategies(name: str, finding: str, steps: int) -> None:
    analysis = analyzed(sample(f"trainer/{name}.sqlite"))
    assert next(one for one in analysis.findings if one.claims == "waiting").id == finding
    assert isinstance(analysis.iterations, Iterations) and isinstance(analysis.nvtx, tuple)
    assert analysis.iterations.range == "iteration #"
    counts = {one.name: one.count for one in analysis.nvtx}
    phases = ("data_load", "h2d") if name == "graph" else ("data_load", "h2d", "forward", "backward", "optimizer")
    assert all(counts[phase] >= steps - 1 for phase in phases), counts
    assert analysis.host.implicit_sync.count == (20 if name == "serial" else 0)
