"""A word that does not exist is answered with the command that was meant."""

from __future__ import annotations

import pytest

from tests.cli.command import Command


@pytest.mark.parametrize(("word", "meant"), [("analyse", "analyze"), ("compair", "compare"), ("what-if", "whatif")])
def test_near_names_are_suggested(traceview: Command, word: str, meant: str) -> None:
    code, out, err = traceview(word, "report")
    assert (code, out) == (2, "") and f"did you mean: traceview {meant}" in err
    assert err.count("\n") == 1


def test_far_names_are_not(traceview: Command) -> None:
    assert "did you mean" not in traceview("xylophone").err
