"""Options that several commands share."""

from __future__ import annotations

import click
import pytest

from traceview.cli.options import parse_flops

CONTEXT, OPTION = click.Context(click.Command("x")), click.Option(["--x"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.2e15", 1_200_000_000_000_000),
        ("1.2P", 1_200_000_000_000_000),
        ("850T", 850 * 10**12),
        ("850 TFLOP", 850 * 10**12),
        ("123", 123),
        (None, None),
    ],
)
def test_operations(text: str | None, expected: int | None) -> None:
    assert parse_flops(CONTEXT, OPTION, text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "1.2X", "1e99", "nan", "1e-3", "9" * 30])
def test_invalid_operations(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"for example 1\.2e15"):
        parse_flops(CONTEXT, OPTION, text)
