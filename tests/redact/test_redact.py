"""A redacted copy has what traceview reads, and every figure; the command lists the texts that it keeps."""

from __future__ import annotations

import gzip
import hashlib
import sqlite3
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.captures import ALL, sample, shared
from tests.cli.command import Command
from tests.redact.figures import figures, numbers, values
from traceview.captures.redact import COLUMNS, LEFT_OUT, MADE_HERE, TEXTS, redact
from traceview.errors import DamagedExportError, NotAnExportError, OutputError
from traceview.pipeline import open_trace
from traceview.read import raw
from traceview.read.formats import read_capture
from traceview.read.raw import RawCapture

TRAINER = ["trainer/ddp.sqlite", "trainer/graph.sqlite"]
TRACES = ["torch_profiler/serial.json.gz", "fsdp_tp/rank0.json.gz"]
OTHERS = ["mpi/heat.sqlite", "openacc/heat_as_2024.2.sqlite", "scenarios/green.sqlite"]
NAMES = [*TRAINER, *TRACES, *OTHERS, *ALL[1:2], *ALL[3:]]
MODES: list[Literal["keep", "hash", "drop"]] = ["keep", "hash", "drop"]
# What rests on ranges, or has a row for each name of a kernel: `--names drop` changes it (docs/redact.md).
BY_NAME = ("answer", "nvtx", "nvtx_phases", "iterations", "findings", "notes", "lines", "speed_of_light")
OF_A_GPU = ("kernels", "kernel_places", "modules", "gaps", "steady", "contention", "exposed_ranges")
IDS = {"nameId", "textId", "shortName", "demangledName"}


def capture(name: str) -> Path:
    return shared(name) if name in ALL else sample(name)


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    export = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        return export.execute(query).fetchall()
    finally:
        export.close()


def columns(read: RawCapture, table: str) -> set[str]:
    """Return the columns of a table, with those that the reader returns apart."""
    apart = read.shapes.columns if read.shapes is not None and table == raw.KERNEL else ()
    return {*read.tables[table].columns, *apart} - {raw.SHAPE}


def test_copy_has_the_columns_that_the_reader_reads() -> None:
    assert COLUMNS.keys() | set(LEFT_OUT) == raw.TABLES.keys()
    for table, kept in COLUMNS.items():
        wanted = raw.TABLES[table]
        assert kept == wanted.columns
        texts = {name for name in kept if name in wanted.text or name in IDS}
        assert table in MADE_HERE or texts == TEXTS.get(table, {}).keys(), table


@pytest.mark.parametrize("name", ["h200_ddp2.sqlite", "public/nsys2024.5_hpc_node.sqlite", *TRACES, *OTHERS])
def test_reader_reads_the_same_from_the_copy(name: str, tmp_path: Path) -> None:
    redact(capture(name), tmp_path / "out.sqlite")
    before, after = (read_capture(path) for path in (capture(name), tmp_path / "out.sqlite"))
    read = before.tables.keys() & COLUMNS.keys()
    assert after.tables.keys() == read | {raw.PROGRAM}
    for table in read:
        assert columns(after, table) == columns(before, table), table
        if table not in (*MADE_HERE, raw.THREAD_NAMES, raw.PROCESSES):
            assert len(after.tables[table]) == len(before.tables[table]), table
    assert (after.nsys_version, after.schema_version, after.profiler) == (
        *(before.nsys_version, before.schema_version), before.profiler,
    )  # fmt: skip
    stored = {table for table, _, _ in values(tmp_path / "out.sqlite")} - {"sqlite_master"}
    assert stored <= {*COLUMNS, "META_DATA_EXPORT"}


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_stays(name: str, tmp_path: Path) -> None:
    path = capture(name)
    expected = figures(path)
    redact(path, tmp_path / "keep.sqlite")
    assert figures(tmp_path / "keep.sqlite") == expected
    redact(path, tmp_path / "hash.sqlite", names="hash")
    assert numbers(figures(tmp_path / "hash.sqlite")) == numbers(expected)


@pytest.mark.parametrize("name", ["h200_ddp2.sqlite", "public/nsys2026.2_2gpu_nccl.sqlite", *TRAINER[:1], *TRACES])
def test_figures_of_each_gpu_stay_without_names(name: str, tmp_path: Path) -> None:
    redact(capture(name), tmp_path / "out.sqlite", names="drop")
    before, after = (figures(path) for path in (capture(name), tmp_path / "out.sqlite"))
    assert before.keys() == after.keys() and len(before["devices"]) == len(after["devices"]) > 0
    for document in (before, after):
        for device in document["devices"]:
            assert device["kernel_families"] and device["busy_ns"] > 0
            for key in OF_A_GPU:
                device.pop(key)
            for key in ("contention_ns", "contention_low_ns", "contention_high_ns"):  # kernels are compared by name
                device["communication"].pop(key)
        document["report"]["trust"].pop("events")  # ranges are gone
        for key in BY_NAME:
            document.pop(key)
    assert before == after
    assert {kernel for (kernel,) in open_trace(tmp_path / "out.sqlite").shapes.select("name").drop_nulls().iter_rows()}


@pytest.mark.parametrize("name", ["dual.sqlite", "trainer/ddp.sqlite"])
def test_names_are_hashed_or_absent(name: str, tmp_path: Path) -> None:
    kept, hashed, dropped = (redact(sample(name), tmp_path / names, names=names).texts for names in MODES)
    own = [each for each in kept if each.kind == "kernel" and "nvjet" in each.text]
    assert own and not set(own).intersection((*hashed, *dropped))
    assert {each.kind for each in kept} - {each.kind for each in dropped} == {"range", "thread or process"}
    assert {each for each in kept if each.kind == "call"} == {each for each in dropped if each.kind == "call"}
    words = {each.text.partition(" ")[0] for each in dropped if each.kind == "kernel"}
    assert {"gemm", "attention"} <= words


def test_equal_names_stay_equal_and_no_guess_can_be_checked(tmp_path: Path) -> None:
    made = [redact(sample("ddp2.sqlite"), tmp_path / f"{at}.sqlite", names="hash").texts for at in range(2)]
    counts = [len([each for each in texts if each.kind == "kernel"]) for texts in made]
    kept = redact(sample("ddp2.sqlite"), tmp_path / "keep.sqlite").texts
    assert counts[0] == counts[1] >= len({each.text for each in kept if each.kind == "kernel"})
    assert made[0] != made[1]  # each copy hashes with a key of its own
    phases = [open_trace(tmp_path / f"{name}.sqlite").ranges["name"].to_physical().to_list() for name in ("0", "keep")]
    assert len(set(zip(*phases, strict=True))) == len(set(phases[0])) == len(set(phases[1]))


@pytest.fixture
def secretive(tmp_path: Path) -> Path:
    """A hand-made export with a secret in each place where captures have had one."""
    path = tmp_path / "secretive.sqlite"
    export = sqlite3.connect(path)
    export.executescript(f"""
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, {7 << 24 | 7}, 1, 1);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ('SECRET', X'534543524554', 0, 1, 1);
        CREATE TABLE OSRT_API (start INT, end INT, globalTid INT, nameId INT);
        INSERT INTO OSRT_API VALUES (1, 2, {7 << 24 | 7}, 6);
        CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, globalTid INT, text TEXT, textId INT,
            jsonText TEXT);
        INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, {7 << 24 | 7}, 'load', NULL, 'SECRET'),
            (1, 2, 59, {7 << 24 | 7}, NULL, 5, NULL), (1, 1, 34, {7 << 24 | 7}, 'a mark of SECRET', NULL, NULL),
            (1, 1, 34, {7 << 24 | 7}, 'flops_per_iteration: 2e9', NULL, NULL);
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT, SECRET TEXT);
        INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel', 'SECRET'), (2, 'main', ''), (3, 'SECRET thread', '');
        INSERT INTO StringIds VALUES (4, '/SECRET.log', ''), (5, 'step 7', ''), (6, 'dlopen("/home/SECRET.so")', '');
        CREATE TABLE ThreadNames (nameId INT, priority INT, globalTid INT);
        INSERT INTO ThreadNames VALUES (2, 0, {7 << 24 | 7}), (3, 0, {8 << 24 | 8});
        CREATE TABLE PROCESSES (globalPid INT, pid INT, name TEXT);
        INSERT INTO PROCESSES VALUES ({7 << 24}, 7, '/home/SECRET/bin/python'), ({8 << 24}, 8, 'SECRET');
        CREATE TABLE TARGET_INFO_SYSTEM_ENV (devStateName TEXT, name TEXT, value TEXT);
        INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('SECRET:22', 'DeviceEnvironment', 'TOKEN=SECRET;USER=SECRETUSER'),
            ('Local (CLI)', 'Hostname', 'SECRET');
        CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
        INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', 'TOKEN=SECRET'),
            ('PROCESS_0:ARGUMENT_0', 'SECRET.py'), ('PROCESS_0:WORKING_DIR', '/SECRET');
        CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
        INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_HOST', 'SECRET'), ('EXPORT_PARAM_INPUT_PATH_ABS', '/SECRET'),
            ('EXPORT_SCHEMA_VERSION', '3.11.1'), ('EXPORT_PRODUCT_NAME', 'SECRET');
        CREATE TABLE DIAGNOSTIC_EVENT (text TEXT);
        INSERT INTO DIAGNOSTIC_EVENT VALUES ('see /tmp/SECRET.log'), ('SECRET: 7 events dropped: 12 by SECRET');
        CREATE TABLE ANALYSIS_FILE (content TEXT);
        INSERT INTO ANALYSIS_FILE VALUES ('SECRET');
        CREATE TABLE ProcessStreams (contentId INT);
        INSERT INTO ProcessStreams VALUES (4);
        CREATE TABLE OSRT_FILE_ACCESS_EVENTS (fileAccessId INT, threadId INT, startedAt INT);
        INSERT INTO OSRT_FILE_ACCESS_EVENTS VALUES (1, 7, 1);
        CREATE TABLE OSRT_FILE_ACCESS_DESCRIPTORS (fileAccessId INT, filePath TEXT);
        INSERT INTO OSRT_FILE_ACCESS_DESCRIPTORS VALUES (1, '/home/SECRET.bin');
        CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT, uuid TEXT, ctrlDevPath TEXT);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 'SECRET-1', '/SECRET'), (1, 'SECRET_GPU', 'SECRET-2', '');
        CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INT, cudaId INT, pid INT, uuid TEXT);
        INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 7, 'SECRET-1'), (1, 1, 7, 'SECRET-2');
        CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INT, metricId INT, metricName TEXT);
        INSERT INTO TARGET_INFO_GPU_METRICS VALUES (0, 0, 'SMs Active [Throughput %]'), (0, 1, 'SECRET metric');
        CREATE TABLE A_TABLE_OF_A_LATER_VERSION (text TEXT);
        INSERT INTO A_TABLE_OF_A_LATER_VERSION VALUES ('SECRET');
        CREATE TABLE CUPTI_ACTIVITY_KIND_SECRET (start INT, ghp_SECRET TEXT);
        INSERT INTO CUPTI_ACTIVITY_KIND_SECRET VALUES (1, 'SECRET');
        CREATE VIEW ENUM_SECRET AS SELECT 'SECRET' AS name;
        CREATE INDEX SECRET ON StringIds (SECRET);
        CREATE TRIGGER SECRET_TRIGGER AFTER INSERT ON StringIds BEGIN SELECT 'SECRET'; END;
    """)
    export.commit()
    export.close()
    return path


def test_copy_has_names_and_no_other_text(secretive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.sqlite"
    before = hashlib.sha256(secretive.read_bytes()).hexdigest()
    done = redact(secretive, out)
    assert hashlib.sha256(secretive.read_bytes()).hexdigest() == before
    assert b"SECRET" not in out.read_bytes()
    kept: dict[str, list[str]] = {}
    for each in done.texts:
        kept.setdefault(each.kind, []).append(each.text)
    assert kept.pop("fact of the capture")
    assert kept == {
        "GPU": ["NVIDIA H200"],
        "call": ["cudaLaunchKernel", "dlopen"],
        "FLOPs": ["flops_per_iteration: 2e9"],
        "hardware counter": ["SMs Active [Throughput %]"],
        "made-up serial number": ["1", "2"],
        "range": ["load", "step 7"],
        "thread or process": ["main", "python"],
    }
    assert rows(out, "SELECT text FROM DIAGNOSTIC_EVENT") == [("",), ("events dropped: 12",)]
    assert rows(out, "SELECT gpuId, uuid FROM TARGET_INFO_CUDA_DEVICE") in ([(0, "1"), (1, "2")], [(0, "2"), (1, "1")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.sqlite", "secretive.sqlite"]


@pytest.mark.parametrize("names", MODES)
@pytest.mark.parametrize("name", ["ddp2.sqlite", "mpi/heat.sqlite", "torch_profiler/graph.json.gz"])
def test_every_text_of_the_copy_is_listed(name: str, names: Literal["keep", "hash", "drop"], tmp_path: Path) -> None:
    done = redact(sample(name), tmp_path / "out.sqlite", names=names)
    inside = {value for table, _, value in values(tmp_path / "out.sqlite") if table != "sqlite_master"}
    assert {value for value in inside if isinstance(value, str)} == {each.text for each in done.texts}
    assert not [value for value in inside if not isinstance(value, (str, int, type(None)))]


def test_redacting_again_changes_nothing(tmp_path: Path) -> None:
    redact(sample("dual.sqlite"), tmp_path / "first.sqlite")
    redact(tmp_path / "first.sqlite", tmp_path / "second.sqlite")
    assert (tmp_path / "first.sqlite").read_bytes() == (tmp_path / "second.sqlite").read_bytes()


def test_failure_leaves_no_file(tmp_path: Path, secretive: Path) -> None:
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


def test_command_ends_with_the_number_of_texts(traceview: Command, tmp_path: Path, secretive: Path) -> None:
    packed = tmp_path / "packed.sqlite.gz"
    packed.write_bytes(gzip.compress(secretive.read_bytes()))
    done = traceview("redact", packed, tmp_path / "out.sqlite")
    assert done.code == 0, done.err
    count = len(redact(packed, tmp_path / "again.sqlite").texts)
    last = done.out.splitlines()[-1]
    assert last.startswith(f"{count} distinct texts (") and last.endswith("--list prints them.")
    listed = traceview("redact", packed, tmp_path / "listed.sqlite", "--list")
    lines = listed.out.splitlines()
    assert len(lines) == count + 2 and "range: step 7" in lines and lines[-1].startswith(f"{count} distinct texts (")
    assert "SECRET" not in listed.out
    assert traceview("redact", packed, tmp_path / "quiet.sqlite", "--names", "hash", "-q").out == ""
    again = traceview("redact", packed, tmp_path / "out.sqlite")
    assert again.code == 2 and again.err.count("\n") == 1 and "name another path" in again.err
