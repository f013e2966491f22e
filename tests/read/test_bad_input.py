"""Invalid files give a one-line error or a correct analysis, and are not modified."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import analyzed, change, sample
from tests.read.test_formats import says
from traceview.errors import (
    DamagedExportError,
    NoGpuWorkError,
    NotAnExportError,
    NotFoundError,
)
from traceview.pipeline import analyze, open_trace


def test_no_such_file(tmp_path: Path) -> None:
    says(NotFoundError, tmp_path / "nothing.sqlite", "no such file", "nsys export")


def test_directory(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    says(NotFoundError, tmp_path / "folder", "directory")


@pytest.mark.parametrize(("content", "word"), [(b"", "empty"), (b"start,end\n1,2\n", "not an SQLite file")])
def test_empty_file_and_text_file(tmp_path: Path, content: bytes, word: str) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(content)
    says(NotAnExportError, path, word)


def test_other_database(tmp_path: Path) -> None:
    path = change(tmp_path / "places.sqlite", "CREATE TABLE bookmarks (id INTEGER, url TEXT)")
    says(NotAnExportError, path, "not an export of Nsight Systems")


def test_export_without_string_ids(report: Path) -> None:
    says(DamagedExportError, change(report, "DROP TABLE StringIds"), "StringIds")


def test_renamed_column(report: Path) -> None:
    changed = change(report, "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN start TO begin")
    says(DamagedExportError, changed, "CUPTI_ACTIVITY_KIND_KERNEL", "'start'")


def test_unfinished_export(report: Path) -> None:
    report.with_name(report.name + "-journal").write_bytes(b"half a transaction")
    says(DamagedExportError, report, "still being written")


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_truncated_export(report: Path, share: float) -> None:
    content = report.read_bytes()
    report.write_bytes(content[: int(len(content) * share)])
    says(DamagedExportError, report, "cut off")


def test_no_gpu_work(report: Path) -> None:
    tables = ("KERNEL", "MEMCPY", "MEMSET")
    nothing = ["DELETE FROM NVTX_EVENTS", *(f"DELETE FROM CUPTI_ACTIVITY_KIND_{name}" for name in tables)]
    says(NoGpuWorkError, change(report, *nothing), "CUDA API calls", "nsys profile -t cuda,nvtx")


@pytest.mark.parametrize(
    "table",
    ["NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "TARGET_INFO_GPU"],
)
def test_missing_tables(report: Path, table: str) -> None:
    actual = analyze(change(report, f"DROP TABLE {table}"))
    assert actual.devices[0].kernel_count == analyzed(sample("dual.sqlite")).devices[0].kernel_count
    if table == "CUPTI_ACTIVITY_KIND_RUNTIME":
        causes = actual.devices[0].gaps.causes
        assert causes["unknown"] + causes["profiler"] == actual.devices[0].idle_ns
        assert actual.unmatched.kernels == actual.devices[0].kernel_count


def test_views_are_not_run(report: Path) -> None:
    changed = change(
        report,
        "ALTER TABLE NVTX_EVENTS RENAME TO moved",
        "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(i) AS "
        "(SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start FROM n",
    )
    assert open_trace(changed).ranges.is_empty()


@pytest.mark.parametrize("name", ["run.sqlite", "run.nsys-rep", "trace.json.gz", "run.qdrep"])
def test_git_lfs_pointer(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:d069e4686fe058d7\nsize 221339648\n")
    with pytest.raises(NotAnExportError) as caught:
        open_trace(path)
    assert str(caught.value) == f"{name}: a Git LFS pointer, not the file itself; get the file: git lfs pull -I {name}"
