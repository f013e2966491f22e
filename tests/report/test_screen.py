"""Text for a terminal: width, ASCII, colours and the number of lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import traceview.report
from tests.report.made_analysis import made_analysis
from traceview.report.analysis import brief, terminal
from traceview.report.screen import CLASS_COLOURS, MAX_LINES, SEVERITY_COLOURS, Screen

ESCAPES = re.compile(r"\033\[[0-9;]*m")
PALETTE = Path(traceview.report.__file__).parent / "assets/core/palette.css"


@pytest.mark.parametrize("colours", [256, 1 << 24])
@pytest.mark.parametrize("report", [brief, terminal])
def test_colours_add_only_escapes(report: object, colours: int) -> None:
    render = report.render  # type: ignore[attr-defined]
    plain, coloured = render(made_analysis(), Screen(100)), render(made_analysis(), Screen(100, colours=colours))
    assert "\033[" not in plain
    assert ESCAPES.sub("", coloured) == plain
    compute, high = ("5;25", "5;124") if colours == 256 else ("2;0;114;178", "2;179;38;30")
    assert f"\033[38;{compute}m███" in coloured and f"   \033[38;{high}mhigh\033[0m" in coloured


def test_colours_are_those_of_the_page() -> None:
    css = PALETTE.read_text(encoding="utf-8")
    light = dict(re.findall(r"--(\w+): (#\w+);", css[: css.index('[data-theme="dark"]')]))
    names = {"█": "compute", "▓": "communication", "▒": "copy", "░": "idle_profiler"}
    assert {mark: light[name] for mark, name in names.items()} == CLASS_COLOURS
    assert {name: light[name] for name in ("high", "medium")} == SEVERITY_COLOURS


def test_names_from_a_capture_have_no_colour() -> None:
    assert Screen(colours=256).text([["  █ high", "   high: x", "   highest"]]).count("\033[38") == 2


def test_ascii() -> None:
    assert Screen(unicode=False).text([["█▓▒░·…µ×–—→± 核"]]) == "#Cc.-~ux-->+- ?\n"


def test_brief_is_bounded_and_keeps_its_last_line() -> None:
    text = Screen().brief([[f"line {number}" for number in range(40)], ["end"]], "tables")
    lines = text.splitlines()
    assert len(lines) == MAX_LINES
    assert lines[-4:] == ["line 21", "  and 20 more lines", "", "  More with -v: tables"]
    assert Screen().brief([["a"], [], ["b"]], "tables") == "a\n\nb\n\n  More with -v: tables\n"
