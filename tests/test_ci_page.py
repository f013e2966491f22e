"""The program of docs/ci.md makes a table of documents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.captures import ROOT, analyzed, sample
from traceview.model.analysis import Iterations
from traceview.report.analysis import to_json

CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_table_of_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "documents").mkdir()
    names, times = ("serial", "pinned", "prefetch"), []
    for name in names:
        analysis = analyzed(sample(f"trainer/{name}.sqlite"))
        (tmp_path / "documents" / f"{name}.json").write_text(to_json(analysis))
        assert isinstance(analysis.iterations, Iterations)
        times.append(analysis.iterations.time_ns / 1e6)
    defined: dict[str, Any] = {}
    (code,) = CODE.findall((ROOT / "docs" / "ci.md").read_text(encoding="utf-8"))
    exec(code, defined)
    table = defined["table"]
    assert table["commit"].to_list() == list(names) and table["time_ms"].to_list() == times
    assert table["change"].to_list() == [None, times[1] / times[0] - 1, times[2] / times[1] - 1]
    assert table.filter(pl.col("change").abs() > 0.03)["commit"].to_list() == ["pinned", "prefetch"]
    assert "prefetch" in capsys.readouterr().out
