"""Times on the command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.made_trace import made_trace
from traceview.errors import RequestError
from traceview.model.times import MAX_DISTANCE, parse_time, window_of_times
from traceview.model.trace import Window

FIRST = 1_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("120ms", FIRST + 120_000_000),
        ("1.5s", FIRST + 1_500_000_000),
        ("300us", FIRST + 300_000),
        ("300µs", FIRST + 300_000),
        ("7ns", FIRST + 7),
        ("0s", FIRST),
        ("-2ms", FIRST - 2_000_000),
        ("0.000000001s", FIRST + 1),
        (" 2 ms ", FIRST + 2_000_000),
        ("8119386", 8_119_386),
        ("@8119386", 8_119_386),
        ("@8.25s", 8_250_000_000),
    ],
)
def test_valid_times(text: str, expected: int) -> None:
    assert parse_time("--from", text, FIRST) == expected


@pytest.mark.parametrize("text", ["", "now", "1.5", "ms", "1e3ms", "1,5s", "5 min", "@", "٣ms", "1" * 30, "nan"])
def test_invalid_times(text: str) -> None:
    with pytest.raises(RequestError, match=r"--to .* is not a time; write 120ms"):
        parse_time("--to", text, FIRST)


@given(st.integers(0, 10**18), st.integers(0, MAX_DISTANCE))
def test_whole_numbers_are_exact(first: int, ns: int) -> None:
    assert parse_time("--from", str(first + ns), first) == first + ns
    assert parse_time("--from", f"{ns}ns", first) == first + ns


def test_default_window_is_the_gpu_work() -> None:
    trace = made_trace(operations=[(100, 900, "compute", 0, None), (200, 300, "compute", 0, None)])
    assert window_of_times(trace, None, None) is None
    assert window_of_times(trace, "50ns", None) == Window(150, 900)
    assert window_of_times(trace, None, "50ns") == Window(100, 150)
    assert window_of_times(trace, "@120ns", "400") == Window(120, 400)


def test_empty_window_names_the_gpu_work() -> None:
    trace = made_trace(operations=[(100, 900, "compute", 0, None)])
    with pytest.raises(RequestError) as caught:
        window_of_times(trace, "5s", None)
    assert str(caught.value) == (
        "--from 5s: that window is empty; the GPU worked for 800 ns, from 100 to 900 on the capture's clock"
    )


def test_no_window_without_gpu_work() -> None:
    assert window_of_times(made_trace(), "5s", None) is None
