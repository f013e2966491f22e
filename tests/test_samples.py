"""What the samples may say, and what samples/scrub.py takes out of a capture."""

from __future__ import annotations

import hashlib
import json
import runpy
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.captures import SAMPLES, original, sample
from traceview.analyze import analyze
from traceview.model import Iterations
from traceview.report.to_json import to_json

OF_THE_TRAINER = [f"trainer/{name}" for name in ("serial", "pinned", "prefetch", "staged", "graph", "ddp")]
SHARED = ["serial", "dual", "quad", "ddp2", "cudagraph"]
NAMES = [*SHARED, *OF_THE_TRAINER]
SCRUB: dict[str, Any] = runpy.run_path(str(SAMPLES / "scrub.py"), run_name="scrub")
scrub: Callable[[Path, Path], None] = SCRUB["scrub"]
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
                found += [value for value in row if isinstance(value, str)]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_says_nothing_of_the_machine_that_made_it(name: str) -> None:
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
def test_a_sample_is_the_capture_event_by_event(name: str) -> None:
    whole, scrubbed = original(f"h200_{name}.sqlite"), sample(f"{name}.sqlite")
    compared = [table for table in EVENT_TABLES if table in tables(whole)]
    assert "CUPTI_ACTIVITY_KIND_RUNTIME" in compared
    for table in compared:
        query = f'SELECT * FROM "{table}" ORDER BY rowid'
        assert rows(whole, query) == rows(scrubbed, query)


@pytest.mark.parametrize("name", SHARED)
def test_a_sample_has_the_figures_of_its_capture(name: str) -> None:
    whole = json.loads(to_json(analyze(original(f"h200_{name}.sqlite"))))
    scrubbed = json.loads(to_json(analyze(sample(f"{name}.sqlite"))))
    assert whole["devices"]
    assert whole.pop("report")["schema_version"] == scrubbed.pop("report")["schema_version"]
    assert whole == scrubbed


@pytest.mark.parametrize("name", SHARED)
def test_a_sample_is_what_scrub_writes(name: str, tmp_path: Path) -> None:
    source = original(f"h200_{name}.sqlite")
    scrub(source, tmp_path / "made.sqlite")
    assert texts(tmp_path / "made.sqlite") == texts(sample(f"{name}.sqlite"))


@pytest.fixture
def secretive(tmp_path: Path) -> Path:
    """An export with a secret in each place that has been seen to hold one."""
    path = tmp_path / "secretive.sqlite"
    export = sqlite3.connect(path)
    export.executescript(f"""
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, nameId INT);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, {7 << 24 | 7}, 1);
        CREATE TABLE StringIds (id INT, value TEXT);
        INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel'), (2, 'main'), (3, 'SECRET thread');
        INSERT INTO StringIds VALUES (4, '/SECRET.log');
        CREATE TABLE ThreadNames (nameId INT, priority INT, globalTid INT);
        INSERT INTO ThreadNames VALUES (2, 0, {7 << 24 | 7}), (3, 0, {8 << 24 | 8});
        CREATE TABLE PROCESSES (globalPid INT, pid INT, name TEXT);
        INSERT INTO PROCESSES VALUES ({7 << 24}, 7, '/home/SECRET/bin/python'), ({8 << 24}, 8, 'SECRET');
        CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
        INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES
            ('DeviceEnvironment', 'TOKEN=SECRET'), ('Hostname', 'SECRET'), ('NvDriverVersion', '580.1');
        CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
        INSERT INTO META_DATA_CAPTURE VALUES
            ('PROCESS_0:ENVIRONMENT_VARIABLE', 'TOKEN=SECRET'), ('PROCESS_0:ARGUMENT_0', 'SECRET.py'),
            ('PROCESS_0:WORKING_DIR', '/SECRET'), ('PROCESS_0:COLLECT_CUDA_TRACE', 'true');
        CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
        INSERT INTO META_DATA_EXPORT VALUES
            ('EXPORT_HOST', 'SECRET'), ('EXPORT_PARAM_INPUT_PATH_ABS', '/SECRET'),
            ('EXPORT_SCHEMA_VERSION', '3.11.1');
        CREATE TABLE DIAGNOSTIC_EVENT (text TEXT);
        INSERT INTO DIAGNOSTIC_EVENT VALUES ('see /tmp/SECRET.log'), ('Profiling has started.');
        CREATE TABLE ANALYSIS_FILE (content TEXT);
        INSERT INTO ANALYSIS_FILE VALUES ('SECRET');
        CREATE TABLE ProcessStreams (contentId INT);
        INSERT INTO ProcessStreams VALUES (4);
        CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT, uuid TEXT);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 'SECRET-1'), (1, 'NVIDIA H200', 'SECRET-2');
        CREATE TABLE A_TABLE_OF_A_LATER_VERSION (text TEXT);
        INSERT INTO A_TABLE_OF_A_LATER_VERSION VALUES ('SECRET');
    """)
    export.commit()
    export.close()
    return path


def test_scrub_takes_every_secret_out_of_the_bytes_and_keeps_the_rest(
    secretive: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.sqlite"
    scrub(secretive, out)
    assert b"SECRET" in secretive.read_bytes()
    assert b"SECRET" not in out.read_bytes()
    assert set(texts(out)) >= {
        "cudaLaunchKernel",
        "main",
        "python",
        "580.1",
        "3.11.1",
        "Profiling has started.",
    }
    uuids = rows(out, "SELECT uuid FROM TARGET_INFO_GPU ORDER BY id")
    assert len(set(uuids)) == 2


def test_scrub_leaves_its_input_and_nothing_half_written(secretive: Path, tmp_path: Path) -> None:
    before = hashlib.sha256(secretive.read_bytes()).hexdigest()
    scrub(secretive, tmp_path / "out.sqlite")
    assert hashlib.sha256(secretive.read_bytes()).hexdigest() == before
    text = tmp_path / "text.sqlite"
    text.write_text("no database")
    with pytest.raises(sqlite3.DatabaseError):
        scrub(text, tmp_path / "never.sqlite")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "out.sqlite",
        "secretive.sqlite",
        "text.sqlite",
    ]


def test_scrub_is_idempotent(tmp_path: Path) -> None:
    scrub(sample("dual.sqlite"), tmp_path / "again.sqlite")
    assert texts(tmp_path / "again.sqlite") == texts(sample("dual.sqlite"))


@pytest.mark.parametrize(
    ("name", "finding", "steps"),
    [
        ("serial", "pageable_copies", 10),
        ("pinned", "shared_stream", 10),
        ("prefetch", "exposed_h2d", 10),
        ("staged", "exposed_h2d", 10),
        ("graph", "whole_graphs", 10),
        ("ddp", "exposed_h2d", 16),
    ],
)
def test_the_trainers_captures_show_its_strategies(name: str, finding: str, steps: int) -> None:
    analysis = analyze(sample(f"trainer/{name}.sqlite"))
    assert analysis.findings[0].id == finding
    assert isinstance(analysis.iterations, Iterations) and isinstance(analysis.nvtx, tuple)
    assert analysis.iterations.range == "iteration #"
    counts = {one.name: one.count for one in analysis.nvtx}
    phases = ("data_load", "h2d") if name == "graph" else ("data_load", "h2d", "forward", "backward", "optimizer")
    assert all(counts[phase] >= steps - 1 for phase in phases), counts
    assert analysis.host.implicit_sync.count == (20 if name == "serial" else 0)
