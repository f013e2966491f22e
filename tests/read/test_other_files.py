"""Files that users take for captures are called by their names, in one line with the remedy."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.captures import change
from tests.read.test_formats import says
from traceview.errors import NotAnExportError

EXECUTION_TRACE = (
    '{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 24807, "start_ts": 17557269,\n  "nodes": [\n  {"id": 2}]}'
)
SQLITE_OF_NVPROF = ("CREATE TABLE StringTable (_id_, value)", "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end)")


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("et.json", EXECUTION_TRACE.encode(), "an execution trace of torch (ExecutionTraceObserver)"),
        ("snapshot.pickle", pickle.dumps({"segments": []}), "a pickle of Python"),
        ("android.pftrace", b"\n\x10\x08\x01\x12\x0cnot of torch", "a Perfetto trace"),
    ],
)
def test_other_files_are_named(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    (path := tmp_path / name).write_bytes(content)
    says(NotAnExportError, path, what, "nsys profile", "export_chrome_trace")


def test_databases_of_nvprof(tmp_path: Path) -> None:
    says(NotAnExportError, change(tmp_path / "run.nvvp", *SQLITE_OF_NVPROF), "written by nvprof", "nsys profile")
