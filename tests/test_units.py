"""Figures as text: the examples of units.json, which the page's scripts follow too, and what holds for every figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceview.model.units import TIMES, duration, exact_duration, in_one_unit, quantity, signed_duration, time_range
from traceview.report.screen import figure, figures

EXAMPLES = json.loads(Path(__file__).with_name("units.json").read_text("utf-8"))
UNITS = {unit: scale for scale, unit in TIMES}
LENGTHS = st.integers(1, 10**15)


@pytest.mark.parametrize("example", EXAMPLES["figures"], ids=lambda example: example["text"])
def test_figures(example: Any) -> None:
    assert figure(example["value"], example["unit"]) == example["text"]


@pytest.mark.parametrize("example", EXAMPLES["columns"], ids=lambda example: " ".join(example["texts"]))
def test_columns(example: Any) -> None:
    assert figures(example["values"], example["unit"]) == example["texts"]


def nanoseconds(text: str) -> float:
    number, unit = text.replace(",", "").split()
    return float(number) * UNITS[unit]


@given(LENGTHS)
def test_three_digits_keep_half_a_hundredth(ns: int) -> None:
    assert abs(nanoseconds(duration(ns)) - ns) <= 0.0051 * ns
    assert len(duration(ns).split()[0].replace(".", "")) <= 3 or ns >= 999_500_000_000 or ns < 1000
    assert nanoseconds(exact_duration(ns)) == pytest.approx(ns, abs=0.5, rel=1e-12)


@given(st.lists(LENGTHS, min_size=1, max_size=8))
def test_columns_keep_their_order(lengths: list[int]) -> None:
    texts = in_one_unit(sorted(lengths), TIMES)
    values = [nanoseconds(text) for text in texts]
    assert values == sorted(values) and all(values)
    if len({text.split()[1] for text in texts}) == 1:
        assert len({len(text.partition(".")[2]) for text in texts}) == 1, "the decimal points are aligned"


def test_times_in_sentences() -> None:
    assert time_range(9_540_000, 13_800_000) == "9.54 to 13.8 ms"
    assert time_range(950_000_000, 1_020_000_000) == "950 ms to 1.02 s"
    assert [signed_duration(ns) for ns in (12_000, 0, -331_000)] == ["+12.0 µs", "0 ms", "-331 µs"]
    assert exact_duration(30_000_125) == "30.000125 ms" and exact_duration(30_000_000) == "30 ms"


def test_quantities() -> None:
    assert [quantity(1, "copy", "copies"), quantity(1312, "copy", "copies"), quantity(2, "gap")] == [
        "1 copy",
        "1,312 copies",
        "2 gaps",
    ]
