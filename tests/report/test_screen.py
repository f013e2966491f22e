"""Text for a terminal: ASCII, colours, the number of lines, and texts that fit into columns, not characters."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import traceview.report
from tests.report.made_analysis import made_analysis
from traceview.model.program import Program
from traceview.report.analysis import terminal
from traceview.report.screen import (
    CLASS_COLOURS,
    MAX_LINES,
    SEVERITY_COLOURS,
    Screen,
    cause_words,
    code_lines,
    left,
    middle,
    short_names,
    width,
    wrap,
)

ESCAPES = re.compile(r"\033\[[0-9;]*m")
PALETTE = Path(traceview.report.__file__).parent / "assets/core/palette.css"
VISIBLE = st.text(st.characters(exclude_categories=("C", "Z", "M")), max_size=150)
WORDS = st.lists(VISIBLE.filter(bool), max_size=30).map(" ".join)


@pytest.mark.parametrize("colours", [256, 1 << 24])
@pytest.mark.parametrize("render", [terminal.render, terminal.render_brief])
def test_colours_add_only_escapes(render: Callable[..., str], colours: int) -> None:
    plain, coloured = render(made_analysis(), Screen(100)), render(made_analysis(), Screen(100, colours=colours))
    assert "\033[" not in plain
    assert ESCAPES.sub("", coloured) == plain
    compute, medium = ("5;25", "5;94") if colours == 256 else ("2;0;114;178", "2;154;91;0")
    assert f"\033[38;{compute}m███" in coloured
    brief = render is terminal.render_brief  # its findings are in the order of their gains, without a severity
    assert (f"   \033[38;{medium}mmedium\033[0m" in coloured) != brief


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
    assert lines[-4:] == ["line 26", "  and 15 more lines with -v", "", "  More with -v: tables"]
    assert Screen().brief([["a"], [], ["b"]], "tables") == "a\n\nb\n\n  More with -v: tables\n"


def test_width_counts_columns() -> None:
    assert [width(text) for text in ("", "abc", "核心", "e\u0301", "…")] == [0, 3, 4, 1, 1]


def test_brief_has_all_notes() -> None:
    notes = ["1 row is left out " + "because of its time " * 8, "a figure is unsure"]
    lines = Screen().brief([[f"line {number}" for number in range(40)]], "tables", notes=notes).splitlines()
    assert len(lines) == MAX_LINES and lines[-6:-5] == [""] and lines[-5].startswith("  Note: 1 row is left out")
    assert lines[-3:] == ["    its time because of its time", "  Note: a figure is unsure", "  More with -v: tables"]


@given(WORDS, st.integers(20, 90), st.integers(0, 8))
def test_no_line_is_cut(text: str, columns: int, margin: int) -> None:
    lines = Screen(columns).text([[" " * margin + text]]).splitlines()
    assert all(width(line) <= columns for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(VISIBLE, st.integers(1, 90))
def test_left_fills_exactly(text: str, columns: int) -> None:
    assert width(left(text, columns)) == columns


@given(VISIBLE, st.integers(3, 90))
def test_middle_keeps_both_ends(text: str, columns: int) -> None:
    short = middle(text, columns)
    assert width(short) <= columns
    head, _, tail = short.partition("…") if width(text) > columns else (text, "", "")
    assert text.startswith(head) and text.endswith(tail)


@given(st.lists(st.text("ab", min_size=1, max_size=40), unique=True, min_size=1, max_size=30), st.integers(16, 40))
def test_short_names_stay_distinct(numbers: list[str], columns: int) -> None:
    """Names of ranks and kernels often differ only in their long middle."""
    names = [f"{'run_of_the_whole_cluster_' * 2}{number}{'_of_a_report_with_a_long_name' * 2}" for number in numbers]
    short = short_names(names, columns)
    assert all(width(name) <= columns for name in short)
    assert len(set(short)) == len(names)


def test_short_names_show_where_they_differ() -> None:
    names = [f"llama_pretraining_node{node}_gpu_report_of_the_second_attempt" for node in (17, 18, 27)]
    assert len(set(short_names(names, 22))) == 3
    assert short_names(["rank0", "rank1"], 22) == ["rank0", "rank1"]
    assert short_names(["a" * 30, "a" * 30], 10) == ["aaaaa…aaaa"] * 2


@given(WORDS)
def test_wrap_keeps_every_character_in_order(text: str) -> None:
    lines = wrap(text, "- ", "  ")
    assert all(width(line) <= 80 for line in lines)
    assert "".join(line[2:] for line in lines).replace(" ", "") == text.replace(" ", "")


def test_wrap_fills_lines() -> None:
    assert wrap("a" * 78 + " b", "- ", "  ") == ["- " + "a" * 78, "  b"]
    assert wrap("") == [""]


def test_code_that_fits_does_not_change() -> None:
    assert list(code_lines("with x:\n    y()   # why", "  ")) == ["  with x:", "      y()   # why"]


def test_long_comment_moves_above_its_line() -> None:
    code = "    total = a + b  # " + "why " * 20
    lines = list(code_lines(code, "  "))
    assert lines[0].startswith("      # why why") and lines[-1] == "      total = a + b"
    assert all(line.lstrip().startswith("#") for line in lines[:-1])


@given(st.lists(st.sampled_from(["name", "=", "f(x,", "y)", "'text'", "+"]), min_size=1, max_size=60))
def test_long_statement_continues_after_backslashes(words: list[str]) -> None:
    lines = list(code_lines(" ".join(words), "    "))
    assert all(width(line) <= 80 for line in lines)
    joined = " ".join(line.removesuffix("\\").strip() for line in lines)
    assert joined == " ".join(words)


def test_causes_of_idle_time_name_the_calls_of_the_gpu() -> None:
    """AMD's GPUs have HIP (`xdit_sd35` of round 13)."""
    nvidia, amd = (cause_words(Program("pytorch", ("pytorch",), nvidia=nvidia)) for nvidia in (True, False))
    assert nvidia["host"].startswith("host code outside CUDA") and amd["host"].startswith("host code outside HIP")
    assert "CUDA" not in " ".join(amd.values()) and nvidia.keys() == amd.keys()
