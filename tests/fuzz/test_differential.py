"""A short run of scripts/decoder-differential: the page decoder and SQLite on generated and damaged databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.differential import run_cases

# Cases in which an earlier decoder gave rows that SQLite refuses: cell counts of 0, and pages beyond the stated size.
ONCE_DIFFERENT = (74, 143, 153, 187, 231, 233, 235, 325, 340, 349, 350, 423, 477, 497, 555, 578, 581, 602, 657, 661)


@pytest.mark.parametrize("first", [0, 200])
def test_decoded_rows_equal_sqlite(tmp_path: Path, first: int) -> None:
    totals = run_cases(1, range(first, first + 200), tmp_path)
    assert not totals.differences
    assert totals.counts["cases with a table decoded"] > 70
    assert totals.counts["damaged cases with other rows decoded"] > 5
    assert totals.counts["cases with a table refused"] > 50


def test_former_differences(tmp_path: Path) -> None:
    assert not run_cases(1, ONCE_DIFFERENT, tmp_path).differences
