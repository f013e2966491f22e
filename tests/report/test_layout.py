"""Columns, not characters: properties of cutting, padding and wrapping."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from traceview.report.layout import code_lines, cut, left, width, wrap

VISIBLE = st.text(st.characters(exclude_categories=("C", "Z", "M")), max_size=150)
WORDS = st.lists(VISIBLE.filter(bool), max_size=30).map(" ".join)


def test_width_counts_columns() -> None:
    assert [width(text) for text in ("", "abc", "核心", "e\u0301", "…")] == [0, 3, 4, 1, 1]


@given(VISIBLE, st.integers(1, 90))
def test_cut_fits_and_keeps_what_fits(text: str, columns: int) -> None:
    short = cut(text, columns)
    assert width(short) <= columns
    assert short == text if width(text) <= columns else short.endswith("…")


@given(VISIBLE, st.integers(1, 90))
def test_left_fills_exactly(text: str, columns: int) -> None:
    assert width(left(text, columns)) == columns


@given(WORDS)
def test_wrap_keeps_every_character_in_order(text: str) -> None:
    lines = wrap(text, "- ", "  ")
    assert all(width(line) <= 80 for line in lines)
    assert "".join(line[2:] for line in lines).replace(" ", "") == text.replace(" ", "")


def test_wrap_fills_lines() -> None:
    assert wrap("a" * 78 + " b", "- ", "  ") == ["- " + "a" * 78, "  b"]
    assert wrap("") == [""]


def test_code_that_fits_is_left_alone() -> None:
    assert list(code_lines("with x:\n    y()   # why", "  ")) == ["  with x:", "      y()   # why"]


def test_a_long_comment_goes_above_and_keeps_the_margin() -> None:
    code = "    total = a + b  # " + "why " * 20
    lines = list(code_lines(code, "  "))
    assert lines[0].startswith("      # why why") and lines[-1] == "      total = a + b"
    assert all(line.lstrip().startswith("#") for line in lines[:-1])


@given(st.lists(st.sampled_from(["name", "=", "f(x,", "y)", "'text'", "+"]), min_size=1, max_size=60))
def test_a_long_statement_goes_on_after_backslashes(words: list[str]) -> None:
    lines = list(code_lines(" ".join(words), "    "))
    assert all(width(line) <= 80 for line in lines)
    joined = " ".join(line.removesuffix("\\").strip() for line in lines)
    assert joined == " ".join(words)
