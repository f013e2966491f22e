"""No secret of tests/fuzz/secrets.py is left in a copy, and long texts do not take quadratic time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.captures import sample
from tests.fuzz.secrets import KINDS, POSITIONS, Draw, left_in, plant
from tests.redact.figures import figures, numbers
from traceview.captures.redact import redact
from traceview.captures.redact.secrets import Secrets

LONG = 300_000  # letters; quadratic time would be an hour
END = " password=hunter2 jane@lab.org /raid/jane/x eyJhbGciOi.eyJzdWIiOi 10.1.1.1 -u jane:pw9Xq"


@pytest.mark.parametrize("seed", range(2))
def test_no_planted_secret_is_left(seed: int, tmp_path: Path) -> None:
    assert len(KINDS) >= 60 and len(POSITIONS) == 12
    report, copy = tmp_path / "report.sqlite", tmp_path / "copy.sqlite"
    shutil.copy(sample("dual.sqlite"), report)
    planted = plant(report, Draw(seed))
    assert len(planted) == len(KINDS) * len(POSITIONS)
    redact(report, copy)
    assert list(left_in(copy, planted)) == []
    assert numbers(figures(copy)) == numbers(figures(report))
    assert len(list(left_in(report, planted))) > len(planted) / 2  # most are in the report


@pytest.mark.parametrize("part", ["aB3dE5fG7hI9jK1lM2nO4pQ6rS8tU0vW ", "eyJ", "sk-", 'password="', "a.", "a/b"])
def test_long_texts_are_searched_in_linear_time(part: str) -> None:
    cleaned = Secrets({}).clean(part * (LONG // len(part)) + END)
    assert "hunter2" not in cleaned and "pw9Xq" not in cleaned
