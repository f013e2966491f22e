"""Unusual files and file names, and captures that change while they are read."""

from __future__ import annotations

import gzip
import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.build_export import Call, Copy, Kernel, build_export
from tests.captures import sample
from tests.fuzz.forms import as_tables
from traceview.errors import DamagedExportError, NotAnExportError, NotFoundError, ReportError
from traceview.pipeline import open_trace
from traceview.read.formats import as_sqlite, read_capture
from traceview.read.sqlite import reader


def test_control_characters_in_names(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        open_trace(tmp_path / "a\n\x1b[31mb\u202ec.sqlite")
    assert str(caught.value).startswith("a??[31mb?c.sqlite: no such file")


def test_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report.sqlite")
    with pytest.raises(NotAnExportError, match="a pipe or device"):
        open_trace(tmp_path / "report.sqlite")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
@pytest.mark.parametrize("closed", ["file", "folder"])
def test_no_permission(tmp_path: Path, closed: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = build_export(folder / "report.sqlite", kernels=[Kernel()])
    (path if closed == "file" else folder).chmod(0)
    try:
        with pytest.raises(ReportError, match=r"report\.sqlite: cannot be read"):
            open_trace(path)
    finally:
        folder.chmod(0o700)


def test_name_too_long_for_the_file_system(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="cannot be read"):
        open_trace(tmp_path / ("x" * 300))


def test_read_only_folder(tmp_path: Path) -> None:
    path = build_export(tmp_path / "report.sqlite", kernels=[Kernel()])
    tmp_path.chmod(0o500)
    try:
        assert len(open_trace(path).operations) == 1
    finally:
        tmp_path.chmod(0o700)


def overwrite(path: Path) -> None:
    """Write the same bytes and restore the times."""
    before, data = path.stat(), path.read_bytes()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_file(path: Path) -> None:
    """Replace a file by a copy with the same size and times."""
    other = path.with_name("other")
    shutil.copy2(path, other)
    other.replace(path)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize("change", [grow, overwrite, replace_file])
@pytest.mark.parametrize("form", ["sqlite", "gz", "parquet", "profiler"])
def test_capture_changes_while_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], form: str
) -> None:
    path = table = tmp_path / "report"
    last_step = {
        "sqlite": "sqlite.database.version_text",
        "gz": "formats.unpack",
        "parquet": "parquet._metadata",
        "profiler": "kineto.trace_file.read_trace",
    }[form]
    if form == "profiler":
        shutil.copyfile(sample("torch_profiler/serial.json.gz"), path)
        path.write_bytes(gzip.decompress(path.read_bytes()))
    else:
        build_export(path, kernels=[Kernel()])
    if form == "gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    if form == "parquet":
        path = tmp_path / "tables"
        as_tables(tmp_path / "report", path, form)
        table = path / "StringIds.parquet"
    assert len(read_capture(path).tables)
    module, _, name = f"traceview.read.{last_step}".rpartition(".")
    step = getattr(importlib.import_module(module), name)

    def then_change(*arguments: object) -> object:
        result = step(*arguments)
        change(table)
        return result

    monkeypatch.setattr(f"{module}.{name}", then_change)
    with pytest.raises(DamagedExportError, match=rf"^{path.name}: changed while it was read; wait until it is"):
        read_capture(path)


@pytest.mark.parametrize("change", [grow, overwrite, replace_file])
@pytest.mark.parametrize("form", ["sqlite", "gz", "parquet"])
def test_export_changes_while_used(tmp_path: Path, change: Callable[[Path], None], form: str) -> None:
    """Info and fleet read the file of as_sqlite themselves."""
    path = changed = build_export(tmp_path / "report", kernels=[Kernel()])
    if form == "gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    if form == "parquet":
        as_tables(path, tmp_path / "tables", form)
        path, changed = tmp_path / "tables", tmp_path / "tables" / "StringIds.parquet"
    with as_sqlite(path) as (export, _):
        assert export.is_file()
    with pytest.raises(DamagedExportError, match=rf"^{path.name}: changed while it was read"), as_sqlite(path):
        change(changed)


def test_wal_mode_file_is_not_modified(tmp_path: Path) -> None:
    path = build_export(tmp_path / "report.sqlite", kernels=[Kernel()], statements=["PRAGMA user_version = 1"])
    connection = reader.sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    before = path.read_bytes()
    assert len(open_trace(path).operations) == 1
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_utf16_databases(tmp_path: Path) -> None:
    plain = build_export(tmp_path / "plain.sqlite", kernels=[Kernel(name="größe")], api=[Call()], copies=[Copy()])
    wide = tmp_path / "wide.sqlite"
    connection = reader.sqlite3.connect(plain)
    script = "PRAGMA encoding = 'UTF-16be';" + "\n".join(connection.iterdump())
    connection.close()
    connection = reader.sqlite3.connect(wide)
    connection.executescript(script)
    connection.close()
    assert open_trace(wide).operations.equals(open_trace(plain).operations)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END",
        "CREATE VIRTUAL TABLE NVTX_EVENTS USING fts5(start, text)",
        "CREATE INDEX i ON CUPTI_ACTIVITY_KIND_KERNEL (start)",
        'CREATE TABLE "odd"" name" (a, b)',
    ],
)
def test_triggers_and_other_schema_objects(tmp_path: Path, statement: str) -> None:
    path = build_export(tmp_path / "report.sqlite", kernels=[Kernel()], statements=[statement])
    trace = open_trace(path)
    assert len(trace.operations) == 1
    assert trace.ranges.is_empty()


def test_captures_are_not_modified(tmp_path: Path) -> None:
    path = Path(shutil.copyfile(sample("dual.sqlite"), tmp_path / "report.sqlite"))
    before = path.read_bytes(), path.stat().st_mtime_ns
    open_trace(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert list(tmp_path.iterdir()) == [path]
