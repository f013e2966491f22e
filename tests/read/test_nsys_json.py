"""Every command refuses unsupported exports with a one-line error; the scanner of JSON exports."""

from __future__ import annotations

import gzip
import json
import sqlite3
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.cli.command import Command
from tests.profiling import profiled, run
from tests.read.test_formats import says
from traceview.errors import DamagedExportError, NotAnExportError, ReportError
from traceview.read import payloads

# Hand-made: the first bytes of an HDF5 file and of nsys's JSON.
HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(100)
JSON = b'{"data":["a","b"],"files":[]}\n{"Type":48,"TraceProcessEvent":{"startNs":"1","endNs":"2"}}\n'
JSON_LINES = b'{"type":"String","id":1,"value":"a"}\n{"Type":48,"TraceProcessEvent":{"startNs":"1"}}\n'
AS_SQLITE = "nsys export --type sqlite -o report.sqlite report.nsys-rep"
NVTX = {name: pl.String() for name in ("Timestamp", "EndTimestamp", "Text")}


@pytest.mark.parametrize(
    ("content", "kind"), [(HDF5, "HDF5"), (JSON, "JSON"), (JSON_LINES, "JSON"), (gzip.compress(JSON), "JSON")]
)
@pytest.mark.parametrize("command", ["analyze", "info", "compare", "whatif", "redact", "export", "fleet"])
def test_unsupported_exports_are_refused(
    tmp_path: Path, traceview: Command, command: str, content: bytes, kind: str
) -> None:
    path = tmp_path / "capture.data"
    path.write_bytes(content)
    out = tmp_path / "out"
    more = {"compare": [path], "redact": [out], "export": ["--format", "parquet", "--output", out]}
    code, printed, err = traceview(command, path, *more.get(command, []))
    assert (code, printed) == (2, "")
    assert "capture.data: " in err and kind in err and AS_SQLITE in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [path]


def test_real_unsupported_exports(nsys: str, tmp_path: Path) -> None:
    report = tmp_path / "nothing.nsys-rep"
    profiled(nsys, report, "sleep", 0.1)
    for kind in ("hdf", "json", "text", "info", "arrow"):
        path = tmp_path / f"nothing.{kind}"
        run(nsys, "export", "-t", kind, "-o", path, report)
        says(NotAnExportError, path, f"--type {kind}", AS_SQLITE)


def test_json_scanner_on_a_real_export(nsys: str, tmp_path: Path) -> None:
    report = tmp_path / "ranges.nsys-rep"
    program = "import nvtx\nfor i in range(20):\n    with nvtx.annotate(f'step {i}'):\n        pass"
    profiled(nsys, report, sys.executable, "-c", program)
    for kind in ("json", "sqlite"):
        run(nsys, "export", "-t", kind, "-o", tmp_path / f"ranges.{kind}", report)
    export = sqlite3.connect(tmp_path / "ranges.sqlite")
    query = 'SELECT start, "end" FROM NVTX_EVENTS WHERE eventType = 59 ORDER BY start'
    expected = [(str(start), str(end)) for start, end in export.execute(query)]
    export.close()
    assert len(expected) == 20
    ranges = pl.concat(payloads.records(tmp_path / "ranges.json", "NvtxEvent", NVTX)).drop_nulls("EndTimestamp")
    assert sorted(ranges.select("Timestamp", "EndTimestamp").rows(), key=lambda row: int(row[0])) == expected


def nvtx(index: int) -> str:
    return json.dumps({"Type": 59, "NvtxEvent": {"Timestamp": str(index), "Text": f"步 {index}"}})


@pytest.mark.parametrize("block", [1, 7, 97, 1 << 20])
@pytest.mark.parametrize("sparse", [1, 1 << 20])
def test_json_scanner_with_any_block_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, sparse: int
) -> None:
    monkeypatch.setattr(payloads, "BLOCK_BYTES", block)
    monkeypatch.setattr(payloads, "SPARSE_BYTES", sparse)
    path = tmp_path / "report.json"
    path.write_text(JSON.decode() + "\n".join(map(nvtx, range(30))), encoding="utf-8")
    frame = pl.concat(payloads.records(path, "NvtxEvent", NVTX))
    assert frame.rows() == [(str(index), None, f"步 {index}") for index in range(30)]


@pytest.mark.parametrize(
    "damage", [lambda text: text[:-9], lambda text: text.replace('"NvtxEvent": {', '"NvtxEvent": [{', 1)]
)
def test_json_scanner_refuses_damaged_records(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    path = tmp_path / "report.json"
    path.write_text(damage("\n".join(map(nvtx, range(3)))), encoding="utf-8")
    with pytest.raises(DamagedExportError, match=r"^report\.json: cut off or damaged"):
        list(payloads.records(path, "NvtxEvent", NVTX))


def test_json_scanner_limits_line_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "BLOCK_BYTES", 10)
    monkeypatch.setattr(payloads, "MAX_LINE_BYTES", 100)
    path = tmp_path / "report.json"
    path.write_bytes(b"x" * 300)
    with pytest.raises(DamagedExportError, match=r"^report\.json: "):
        list(payloads.records(path, "NvtxEvent", NVTX))
    with pytest.raises(ReportError, match=r"^nothing\.json: cannot be read"):
        list(payloads.records(tmp_path / "nothing.json", "NvtxEvent", NVTX))
