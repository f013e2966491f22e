"""Regular expressions of users: what they match, and that no expression takes long."""

from __future__ import annotations

import random
import re

import polars as pl
import pytest

from traceview.errors import RequestError
from traceview.model import names as model_names
from traceview.model.names import names_with_match

PARTS = ("a", "b", "1", "_", ".", "a+", "b*", "(a|b)", "[ab]", "\\d+", "\\w", "^", "$", "(?i)A", "a{2}", "(a+)+", "|")
NAMES = pl.Series(["", "a", "ab", "aab1", "b_", "1.5", "a b", "B", "step 12", None])


def test_matches_are_those_of_python() -> None:
    chance = random.Random(1)
    for _ in range(2_000):
        pattern = "".join(chance.choices(PARTS, k=4)).replace("(?i)", "")
        try:
            expression = re.compile(pattern)
        except re.error:
            continue
        try:
            matches = names_with_match(NAMES, pattern, "--iteration").to_list()
        except RequestError:
            continue  # a repetition of nothing or of a repetition
        assert matches == [name for name in NAMES.drop_nulls() if expression.search(name)], pattern


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(a|a)*$", "(.*a){30}$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_backtracking_expressions(pattern: str) -> None:
    """A name of 30 letters took these expressions minutes."""
    assert names_with_match(pl.Series(["a" * 30_000 + "!"]), pattern, "--iteration").is_empty()


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", r"unclosed group"),
        ("(?=a)", r"look-ahead and look-behind, is not supported"),
        (r"(a)\1", r"backreferences are not supported"),
        (r"\w{1000}", r"it is too large"),
        ("a" * 1001, r"has 1001 characters"),
    ],
)
def test_errors_take_one_line(pattern: str, words: str) -> None:
    with pytest.raises(RequestError, match=rf"^a\.sqlite: --iteration .*{words}") as raised:
        names_with_match(NAMES, pattern, "a.sqlite: --iteration")
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400


def test_search_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression that takes long for each letter is searched in parts, until the time is over."""
    names = pl.Series([f"{number}{'a' * 30_000}" for number in range(40)])
    moments = iter(range(100))
    monkeypatch.setattr(model_names, "monotonic", lambda: next(moments))
    with pytest.raises(RequestError, match=r"--iteration 'b' takes more than 10 s; simplify it"):
        names_with_match(names, "b", "--iteration")
    assert next(moments) == 12
