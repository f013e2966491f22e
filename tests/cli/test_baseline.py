"""Stored baselines: what they hold, and comparisons with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.captures import sample
from tests.cli.command import Command
from traceview.pipeline import analyze


def test_stored_and_compared(tmp_path: Path, traceview: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert traceview("compare", "--baselines").out == "no baseline in .traceview/baselines\n"
    stored = Path(".traceview") / "baselines" / "main.sqlite.gz"
    assert traceview("compare", "--save", "main", sample("cudagraph.sqlite")) == (0, f"{stored}\n", "")
    first = stored.read_bytes()
    assert traceview("compare", "--save", "main", sample("cudagraph.sqlite"), "-q").code == 0
    assert stored.read_bytes() == first
    true = analyze(sample("cudagraph.sqlite"))
    document = json.loads(traceview("compare", "--baselines", "--json", "-").out)
    (row,) = document["baselines"]
    assert row["time_ns"] == true.iterations.time_ns and row["bytes"] == len(first)  # type: ignore[union-attr]
    assert traceview("compare", "--baselines").out.startswith("main  718 µs per iteration, NVIDIA H200")
    code, out, error = traceview("compare", "baseline:main", sample("cudagraph.sqlite"), "--json", "-")
    against = json.loads(out)["against"][0]
    assert (code, error, against["time"]["difference_ns"], against["verdict"]) == (0, "", 0, "noise")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("compare", "baseline:mian", "x.sqlite"), "mian: no such baseline"),
        (("compare", "--save", "../main", "x.sqlite"), "a baseline's name has letters"),
        (("compare", "--save", "main", "x.sqlite"), "x.sqlite"),
        (("compare", "--save", "main", "x.sqlite", "y.sqlite"), "--save NAME takes one capture"),
        (("compare", "--baselines", "x.sqlite"), "--baselines none"),
        (("compare", "x.sqlite"), "compare takes BEFORE and AFTER"),
    ],
)
def test_errors(
    words: tuple[str, ...], reason: str, tmp_path: Path, traceview: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = traceview(*words)
    assert (code, out) == (2, "") and error.count("\n") == 1 and reason in error
