"""A redacted copy keeps every figure and drops the data of the machine."""

from __future__ import annotations

import gzip
import hashlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.captures import ALL, H200, SAMPLES, sample, shared
from tests.cli.command import Command
from tests.redact.figures import figures, numbers
from traceview.captures.redact import redact
from traceview.errors import DamagedExportError, NotAnExportError, OutputError

TRAINER = [f"trainer/{path.name}" for path in sorted((SAMPLES / "trainer").glob("*.sqlite"))]


def capture(name: str) -> Path:
    return shared(name) if name in ALL else sample(name)


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    export = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        return export.execute(query).fetchall()
    finally:
        export.close()


# PyTorch's ranges of operations, whose numbers fold; with hashed names each range has a name of its own.
WITH_OP_NUMBERS = "public/nsys2026.2_2gpu_nccl.sqlite"


@pytest.mark.parametrize("name", [*TRAINER, *ALL])
def test_every_figure_stays(name: str, tmp_path: Path) -> None:
    path = capture(name)
    done = redact(path, tmp_path / "out.sqlite")
    assert set(done.secrets) <= {"path"}  # of the profiler's session, in its diagnostics
    expected = figures(path)
    assert figures(tmp_path / "out.sqlite") == expected
    if name in (*TRAINER[1:], *H200[1:], WITH_OP_NUMBERS):
        return  # hashing one capture of each program is enough
    assert redact(path, tmp_path / "hashed.sqlite", hash_names=True).hashed
    assert numbers(figures(tmp_path / "hashed.sqlite"), hashed=True) == numbers(expected, hashed=True)


@pytest.mark.parametrize("name", ["dual.sqlite", "trainer/ddp.sqlite"])
def test_hashed_names_differ_from_all_names(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.sqlite"
    redact(sample(name), out, hash_names=True)
    ids = "SELECT shortName FROM CUPTI_ACTIVITY_KIND_KERNEL UNION SELECT textId FROM NVTX_EVENTS"
    before = {value for (value,) in rows(sample(name), f"SELECT value FROM StringIds WHERE id IN ({ids})")}
    before |= {text for (text,) in rows(sample(name), "SELECT DISTINCT text FROM NVTX_EVENTS WHERE text NOT NULL")}
    after = {value for (value,) in rows(out, "SELECT value FROM StringIds")}
    after |= {text for (text,) in rows(out, "SELECT text FROM NVTX_EVENTS")}
    assert before and before & after <= {"NCCL"}  # the name of a library's domain
    assert {"cudaLaunchKernel_v7000", "cudaLaunchKernelExC_v11060"} & after


@pytest.fixture
def secretive(tmp_path: Path) -> Path:
    """A hand-made export with a secret in each place where captures have had one."""
    path = tmp_path / "secretive.sqlite"
    export = sqlite3.connect(path)
    export.executescript(f"""
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, nameId INT);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, {7 << 24 | 7}, 1), ('SECRET', X'534543524554', 0, 1);
        CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, globalTid INT, text TEXT, textId INT,
            jsonText TEXT);
        INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, {7 << 24 | 7}, 'of SECRETUSER at /home/SECRET/x', NULL, 'SECRET'),
            (1, 2, 59, {7 << 24 | 7}, NULL, 5, NULL);
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT, SECRET TEXT);
        INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel', 'SECRET'), (2, 'main', ''), (3, 'SECRET thread', '');
        INSERT INTO StringIds VALUES (4, '/SECRET.log', ''), (5, 'load SECRET@mail.example', '');
        CREATE TABLE ThreadNames (nameId INT, priority INT, globalTid INT);
        INSERT INTO ThreadNames VALUES (2, 0, {7 << 24 | 7}), (3, 0, {8 << 24 | 8});
        CREATE TABLE PROCESSES (globalPid INT, pid INT, name TEXT);
        INSERT INTO PROCESSES VALUES ({7 << 24}, 7, '/home/SECRET/bin/python'), ({8 << 24}, 8, 'SECRET');
        CREATE TABLE TARGET_INFO_SYSTEM_ENV (devStateName TEXT, name TEXT, value TEXT);
        INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('SECRET:22', 'DeviceEnvironment', 'TOKEN=SECRET;USER=SECRETUSER'),
            ('Local (CLI)', 'Hostname', 'SECRET'), ('SECRET', 'NvDriverVersion', '580.1');
        CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
        INSERT INTO META_DATA_CAPTURE VALUES
            ('PROCESS_0:ENVIRONMENT_VARIABLE', 'TOKEN=SECRET'), ('PROCESS_0:ARGUMENT_0', 'SECRET.py'),
            ('PROCESS_0:WORKING_DIR', '/SECRET'), ('PROCESS_0:COLLECT_CUDA_TRACE', 'true');
        CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
        INSERT INTO META_DATA_EXPORT VALUES
            ('EXPORT_HOST', 'SECRET'), ('EXPORT_PARAM_INPUT_PATH_ABS', '/SECRET'),
            ('EXPORT_SCHEMA_VERSION', '3.11.1');
        CREATE TABLE DIAGNOSTIC_EVENT (text TEXT);
        INSERT INTO DIAGNOSTIC_EVENT VALUES ('see /tmp/SECRET.log'), ('Profiling has started.'), ('SECRET: no route');
        CREATE TABLE ANALYSIS_FILE (content TEXT);
        INSERT INTO ANALYSIS_FILE VALUES ('SECRET');
        CREATE TABLE ProcessStreams (contentId INT);
        INSERT INTO ProcessStreams VALUES (4);
        CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT, uuid TEXT, ctrlDevPath TEXT);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 'SECRET-1', '/SECRET'),
            (1, 'NVIDIA H200', 'SECRET-2', '');
        CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INT, cudaId INT, pid INT, uuid TEXT);
        INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (1, 0, 7, 'SECRET-2');
        CREATE TABLE A_TABLE_OF_A_LATER_VERSION (text TEXT);
        INSERT INTO A_TABLE_OF_A_LATER_VERSION VALUES ('SECRET');
        CREATE TABLE CUPTI_ACTIVITY_KIND_SECRET (start INT, ghp_SECRET TEXT);
        INSERT INTO CUPTI_ACTIVITY_KIND_SECRET VALUES (1, 'SECRET');
        CREATE TABLE "CUPTI_ACTIVITY_KIND_'SECRET" (start INT);
        INSERT INTO "CUPTI_ACTIVITY_KIND_'SECRET" VALUES (1);
        CREATE VIEW ENUM_SECRET AS SELECT 'SECRET' AS name;
        CREATE INDEX SECRET ON StringIds (SECRET);
        CREATE TRIGGER SECRET_TRIGGER AFTER INSERT ON StringIds BEGIN SELECT 'SECRET'; END;
    """)
    export.commit()
    export.close()
    return path


def test_private_data_is_removed_and_the_rest_stays(secretive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.sqlite"
    before = hashlib.sha256(secretive.read_bytes()).hexdigest()
    done = redact(secretive, out)
    assert hashlib.sha256(secretive.read_bytes()).hexdigest() == before
    assert b"SECRET" not in out.read_bytes()
    kept = {text for (text,) in rows(out, "SELECT value FROM StringIds UNION SELECT value FROM META_DATA_EXPORT")}
    assert kept == {"cudaLaunchKernel", "main", "load [removed f 1]", "3.11.1"}
    assert rows(out, "SELECT name FROM PROCESSES") == [("python",)]
    assert rows(out, "SELECT text FROM NVTX_EVENTS") == [("of [removed h 1] at [removed c 1]",), (None,)]
    uuids = [uuid for (uuid,) in rows(out, "SELECT uuid FROM TARGET_INFO_GPU ORDER BY id")]
    assert len(set(uuids)) == 2
    assert rows(out, "SELECT uuid FROM TARGET_INFO_CUDA_DEVICE") == [(uuids[1],)]
    assert dict(done.secrets) == {
        "host or user": 2,
        "path": 2,
        "e-mail address": 1,
        "password, key or token that is set": 1,  # SECRET: no
    }
    assert done.serial_numbers == 2
    removed = {row.table: row.count for row in done.rows}
    assert removed["ANALYSIS_FILE"] == 1 and removed["other tables"] == 3 and done.columns == 3
    assert removed["PROCESSES"] == 1 and removed["META_DATA_CAPTURE"] == 3
    assert not [line for line in map(str, done.rows) if "SECRET" in line]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.sqlite", "secretive.sqlite"]


def test_redacting_again_changes_nothing(tmp_path: Path) -> None:
    redact(sample("dual.sqlite"), tmp_path / "first.sqlite")
    done = redact(tmp_path / "first.sqlite", tmp_path / "second.sqlite")
    assert (tmp_path / "first.sqlite").read_bytes() == (tmp_path / "second.sqlite").read_bytes()
    assert not done.rows and not done.columns and not done.secrets


def test_failure_leaves_no_file(tmp_path: Path, secretive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, out = tmp_path / "text.sqlite", tmp_path / "out.sqlite"
    text.write_text("no database")
    with pytest.raises(NotAnExportError, match="not an SQLite file"):
        redact(text, out)
    damaged = bytearray(sample("dual.sqlite").read_bytes())
    damaged[200_000:260_000] = bytes(60_000)
    text.write_bytes(damaged)
    with pytest.raises(DamagedExportError, match=r"text\.sqlite"):
        redact(text, out)
    with pytest.raises(OutputError, match="exists"):
        redact(secretive, secretive)
    with pytest.raises(OutputError, match="folder"):
        redact(secretive, tmp_path / "nowhere" / "out.sqlite")

    def interrupted(_step: str, _done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        redact(secretive, out, progress=interrupted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secretive.sqlite", "text.sqlite"]


def test_command_lists_what_it_removed(traceview: Command, tmp_path: Path, secretive: Path) -> None:
    packed = tmp_path / "packed.sqlite.gz"
    packed.write_bytes(gzip.compress(secretive.read_bytes()))
    done = traceview("redact", packed, tmp_path / "out.sqlite")
    assert done.code == 0, done.err
    assert "ANALYSIS_FILE: 1 row, files of the profiler and output of the program" in done.out
    assert "e-mail address: 1 different" in done.out and "SECRET" not in done.out
    assert traceview("redact", packed, tmp_path / "quiet.sqlite", "--names", "hash", "-q").out == ""
    again = traceview("redact", packed, tmp_path / "out.sqlite")
    assert again.code == 2 and again.err.count("\n") == 1 and "name another path" in again.err


def test_summary_names_its_limits(traceview: Command, tmp_path: Path) -> None:
    done = traceview("redact", sample("cudagraph.sqlite"), tmp_path / "out.sqlite")
    assert done.code == 0, done.err
    assert "No known secret pattern matched a kept name." in done.out
    assert "of kept tables, not needed for any figure" in done.out and "recognised (docs/redact.md" in done.out
