"""The page options of `analyze`."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.cli.command import Command
from traceview.model.units import size


@pytest.mark.parametrize("size", ["8XB", "many", "-3MB", "", "1e9"])
def test_invalid_size_is_one_line(traceview: Command, report: Path, size: str) -> None:
    result = traceview("analyze", report, "--detail", size)
    assert result.code == 2 and "(for example 15MB)" in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize(("size", "most"), [("1.2MB", 1_200_000), ("2MiB", 2 << 20), ("1200000", 1_200_000)])
def test_page_keeps_within_its_size(traceview: Command, report: Path, size: str, most: int) -> None:
    assert traceview("analyze", report, "--detail", size, "--quiet").code == 0
    [page] = report.parent.glob("*.overlap.html")
    assert page.stat().st_size <= most


def test_size_below_the_minimum_warns(traceview: Command, report: Path) -> None:
    code, out, err = traceview("analyze", report, "--detail", "1MB", "--quiet")
    [page] = report.parent.glob("*.overlap.html")
    assert (code, out) == (0, "")
    assert err == f"traceview: --detail 1.00 MB is too small: the page needs {size(page.stat().st_size)}\n"


def test_open_opens_the_page(traceview: Command, report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(click, "launch", opened.append)
    assert traceview("analyze", report, "--open", "--quiet").code == 0
    [page] = report.parent.glob("*.overlap.html")
    assert opened == [page.resolve().as_uri()]


@pytest.mark.parametrize("option", [["--open"], ["--detail", "3MB"]])
def test_page_options_need_a_page(traceview: Command, report: Path, option: list[str]) -> None:
    result = traceview("analyze", report, "--no-html", *option)
    assert result.code == 2 and "--no-html" in result.err
