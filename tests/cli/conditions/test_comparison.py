"""--fail-if on changes: what is understood, what holds, and what is said."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.comparison.test_captures import compared
from traceview.cli.conditions.comparison import KNOWN, failures, parse
from traceview.errors import RequestError


def failed(text: str, *names: str) -> list[str]:
    return list(failures([parse(text)], compared(*(names or ("dual", "serial")))))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wall > 3%", "wall changed by +15.539 ms (+110.58%) per iteration in serial.sqlite"),
        ("wall>=110%", "wall changed by"),
        ("exposed_h2d > 1ms", "exposed_h2d changed by"),
        ("exposed_h2d > 100%", "exposed_h2d changed by"),
        ("sync.count > 1", "sync.count changed by +1.90 (+172.73%) per iteration in serial.sqlite"),
        ("sync.count > 100%", "sync.count changed by"),
        ("kernels == 0", "kernels changed by +0.00"),
        ("implicit_sync.count > 500%", "implicit_sync.count changed by +1.00 per iteration in serial.sqlite"),
        ("exposed_communication == 0", "exposed_communication changed by +0.000 ms (+0.00%)"),
    ],
)
def test_what_holds_is_said_with_the_change(text: str, said: str) -> None:
    (line,) = failed(text)
    assert line.startswith(f"{text}: {said}")


@pytest.mark.parametrize("text", ["wall > 120%", "wall < 0", "exposed_h2d > 1s", "kernels > 0", "sync.count < 0"])
def test_what_does_not_hold_is_silent(text: str) -> None:
    assert failed(text) == []


def test_below_zero_asks_for_an_improvement() -> None:
    assert failed("wall > -10%", "serial", "dual") == []
    assert len(failed("wall > -90%", "serial", "dual")) == 1


def test_each_capture_is_asked() -> None:
    assert [line.rsplit(" ", 1)[1] for line in failed("wall < -1%", "serial", "dual", "quad")] == [
        "dual.sqlite",
        "quad.sqlite",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no condition on a change; write QUANTITY > NUMBER"),
        ("wall", "is no condition"),
        ("wall > 5 apples", "is no condition"),
        ("__import__('os') > 1", "is no condition"),
        ("exposed_hd2 > 5%", "did you mean exposed_h2d"),
        ("zzz > 1", "known are wall, idle, compute"),
        ("sync.count > 5ms", "sync.count is a count"),
    ],
)
def test_what_cannot_be_meant_says_what_can(text: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        parse(text)


@settings(max_examples=40)
@given(st.text(max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        assert parse(text).quantity in KNOWN
    except RequestError as error:
        assert "--fail-if" in str(error)


def test_every_quantity_has_a_change() -> None:
    for quantity in KNOWN:
        assert len(failed(f"{quantity} >= -999999999999")) == 1, quantity
