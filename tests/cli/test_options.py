"""Options that several commands share."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import polars as pl
import pytest

from tests.captures import sample
from tests.cli.command import Command
from traceview.cli.options import parse_flops
from traceview.read.formats import MAX_LISTED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.2e15", 1_200_000_000_000_000),
        ("1.2P", 1_200_000_000_000_000),
        ("850T", 850 * 10**12),
        ("850 TFLOP", 850 * 10**12),
        ("123", 123),
    ],
)
def test_operations(text: str, expected: int) -> None:
    assert parse_flops(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "1.2X", "1e99", "nan", "1e-3", "9" * 30])
def test_invalid_operations(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"for example 1\.2e15"):
        parse_flops(text)


def test_folder_of_captures_is_listed(traceview: Command, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "notes.json").write_text('{"a": 1}')
    code, out, err = traceview("analyze", folder)
    assert (code, out) == (2, "") and "runs: a folder without captures; name an .sqlite file" in err
    shutil.copy(sample("dual.sqlite"), folder)
    assert traceview("info", folder) == traceview("info", sample("dual.sqlite"))
    shutil.copy(sample("torch_profiler/graph.json.gz"), folder)
    (folder / "trace.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    code, out, err = traceview("whatif", folder)
    assert code == 2
    assert [line.split() for line in out.splitlines()] == [
        ["1.43", "MB", "SQLite", "export", "dual.sqlite"],
        ["135", "kB", "torch.profiler", "trace", "graph.json.gz"],
        ["39", "B", "torch.profiler", "trace", "trace.json"],
    ]
    assert err.count("\n") == 1 and f"name one, for example {folder}/dual.sqlite" in err
    for number in range(MAX_LISTED):
        (folder / f"{number}.json").write_text('{"traceEvents": []}')
    assert traceview("analyze", folder).out.endswith("  and 3 more\n")


def test_folder_of_tables_is_a_capture(traceview: Command, tmp_path: Path) -> None:
    pl.DataFrame({"id": [0], "value": ["a"]}).write_parquet(tmp_path / "StringIds.parquet")
    assert "captures" not in traceview("info", tmp_path).err
