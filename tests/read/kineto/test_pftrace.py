"""Perfetto traces of torch.profiler have the figures of its JSON traces, but for what torch leaves out of them.

No torch that writes them runs here (it needs CUDA and cupti-python): the traces are made as its encoder makes them.
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.captures import SAMPLES
from tests.read.kineto.as_pftrace import as_pftrace
from tests.read.test_formats import says
from traceview.errors import DamagedExportError, ReportError
from traceview.pipeline import analyze, open_trace
from traceview.read.formats import kind_of, trace_rank
from traceview.report.analysis import document

SERIAL = SAMPLES / "torch_profiler" / "serial.json.gz"
STEADY = ("busy_ns", "compute_ns", "idle_ns", "kernel_count", "causes", "kernel_families")


@pytest.fixture(scope="module")
def serial() -> dict[str, Any]:
    """The sample, with times whose digits JSON keeps, and copies without a kind."""
    whole: dict[str, Any] = json.loads(gzip.decompress(SERIAL.read_bytes()), parse_float=Decimal)
    for event in whole["traceEvents"]:
        event.update({key: str(event[key]) for key in ("ts", "dur") if key in event})
        if event.get("cat") in ("gpu_memcpy", "gpu_memset"):
            event["name"] = {"gpu_memcpy": "Memcpy", "gpu_memset": "Memset"}[event["cat"]]
    whole.pop("deviceProperties")
    return json.loads(json.dumps(whole, default=float))


@pytest.fixture(scope="module")
def pftrace(serial: dict[str, Any]) -> bytes:
    return as_pftrace(serial)


def test_figures_are_those_of_the_json(tmp_path: Path, serial: dict[str, Any], pftrace: bytes) -> None:
    """Also compressed, as torch writes it under the name .pftrace."""
    (tmp_path / "run.json").write_text(json.dumps(serial))
    path = tmp_path / "run_rank3.pftrace"
    path.write_bytes(gzip.compress(pftrace, 1))
    assert (kind_of(path), trace_rank(path)) == ("torch.profiler Perfetto trace", 3)
    expected, actual = document(analyze(tmp_path / "run.json")), document(analyze(path))
    for key in STEADY:
        assert actual["devices"][0]["steady"][key] == expected["devices"][0]["steady"][key], key
    for part in ("iterations", "host", "nvtx"):
        assert actual[part] == expected[part], part
    assert [finding["id"] for finding in actual["findings"]] == [finding["id"] for finding in expected["findings"]]
    assert any("no kinds of copies" in note["text"] for note in actual["notes"])


def test_cut_traces_are_read_up_to_the_cut(tmp_path: Path, pftrace: bytes) -> None:
    path = tmp_path / "cut.pftrace"
    path.write_bytes(pftrace[: int(len(pftrace) * 0.9)])
    trace = open_trace(path)
    assert 0 < len(trace.operations) < 3000 and any("last whole event" in line for line in trace.info.problems)


def test_damaged_traces_are_refused(tmp_path: Path, pftrace: bytes) -> None:
    path = tmp_path / "damaged.pftrace"
    for at in range(60, 20_000, 1_999):
        path.write_bytes(pftrace[:at] + b"\xff" * 30 + pftrace[at + 30 :])
        try:
            open_trace(path)
        except ReportError as error:
            assert "\n" not in str(error) and "damaged.pftrace" in str(error)
    path.write_bytes(pftrace[:60] + b"\xff" * 100)
    says(DamagedExportError, path, "damaged Perfetto trace", "export_chrome_trace")


def test_without_the_package(tmp_path: Path, pftrace: bytes) -> None:
    path = tmp_path / "run.pftrace"
    path.write_bytes(pftrace)
    code = "import sys; sys.modules['perfetto'] = None; from traceview.__main__ import run; run()"
    ended = subprocess.run(
        [sys.executable, "-c", code, "info", str(path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(r"traceview: error: run\.pftrace: .*needs the package perfetto: pip install .*\n", ended.stderr)
