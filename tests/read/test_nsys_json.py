"""Every command refuses unsupported exports with a one-line error; payloads of JSON exports."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
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


def event(index: int) -> str:
    payload = {"BinaryData": [{"Data": f"步 {index}"}]}
    return json.dumps({"Type": 59, "NvtxEvent": {"Timestamp": str(index), "Text": "{", "Payload": payload}})


def test_payloads_of_a_json_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "BATCH_ROWS", 7)
    path = tmp_path / "report.json"
    path.write_text(JSON.decode() + "\n".join(map(event, range(30))), encoding="utf-8")
    frame = pl.concat(payloads.json_payloads(path))
    assert frame.rows() == [(index, None, None, f"步 {index}") for index in range(30)]


@pytest.mark.parametrize(
    "damage", [lambda text: text[:-9], lambda text: text.replace('"NvtxEvent": {', '"NvtxEvent": [{', 1)]
)
def test_damaged_json_is_refused(tmp_path: Path, damage: Callable[[str], str]) -> None:
    path = tmp_path / "report.json"
    path.write_text(damage("\n".join(map(event, range(3)))), encoding="utf-8")
    with pytest.raises(DamagedExportError, match=r"^report\.json: cut off or damaged"):
        list(payloads.json_payloads(path))
    with pytest.raises(ReportError, match=r"^nothing\.json: cannot be read"):
        list(payloads.json_payloads(tmp_path / "nothing.json"))
