"""`compare --history`: figures of commits, and the commits where they changed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.captures import sample
from tests.cli.command import Command
from traceview import analyze
from traceview.comparison.history import FIGURES, level_starts
from traceview.model.analysis import Iterations

MS = 1_000_000


def runs(levels: list[float], noise: float, seed: int) -> np.ndarray:
    """Return a mean time for each level in ms, with run-to-run noise as a share of it."""
    random = np.random.default_rng(seed)
    return (np.array(levels) * MS * random.normal(1, noise, len(levels))).astype(np.int64)


@pytest.mark.parametrize("seed", range(5))
def test_levels_are_found_where_they_begin(seed: int) -> None:
    means = runs([20.0] * 12 + [24.0] * 8 + [18.0] * 10, 0.01, seed)
    assert level_starts(means, np.zeros(30, np.int64), means) == [12, 20]


@pytest.mark.parametrize("count", [5, 10, 30, 100])
def test_noise_has_no_levels(count: int) -> None:
    means = [runs([20.0] * count, 0.03, seed) for seed in range(300)]
    assert sum(len(level_starts(history, np.zeros(count, np.int64), history)) > 0 for history in means) <= 15


def test_change_at_the_latest_commit_and_small_change() -> None:
    means = runs([20.0] * 10 + [26.0], 0.005, 1)
    assert level_starts(means, np.zeros(11, np.int64), means) == [10]
    assert level_starts(means, np.full(11, 10 * MS, np.int64), means) == []
    exact = np.array([20 * MS] * 5 + [int(20.1 * MS)] * 5, np.int64)
    assert level_starts(exact, np.zeros(10, np.int64), exact) == []


def test_command_names_the_commit(traceview: Command, tmp_path: Path) -> None:
    path, page = tmp_path / "history.jsonl", tmp_path / "history.html"
    names = [
        ("a1", "dual"),
        ("a2", "dual"),
        ("a3", "dual"),
        ("b1<script>", "serial"),
        ("b2", "serial"),
        ("b2", "serial"),
    ]
    for commit, name in names:
        done = traceview("compare", "--history", path, "--commit", commit, sample(f"{name}.sqlite"), "--html", page)
        assert (done.code, done.err) == (0, "")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["commit"] for row in rows] == ["a1", "a2", "a3", "b1<script>", "b2"]
    assert all(tuple(row["figures"]) == FIGURES for row in rows)
    exact = analyze(sample("dual.sqlite")).iterations
    assert isinstance(exact, Iterations) and rows[0]["figures"]["wall"]["mean_ns"] == exact.time_ns
    assert "time of an iteration changed at b1<script>: 13.6 to 30.1 ms" in done.out
    text = page.read_text()
    assert "b1&lt;script" in text and "<script" not in text
    assert text.count("<circle") == 5 * len(FIGURES) and text.count('class="change"') == done.out.count(" changed at ")
    assert "visibility: hidden" not in text  # no script shows what a style hides
    assert not re.search(r"(?:src|href)=\"(?!data:)", text)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("", ("--commit", "a"), "--history takes one capture and its --commit, or neither"),
        ('{"commit": 1}\n', (), "line 1 is not of `traceview compare --history`; remove it"),
    ],
)
def test_errors_are_one_line(
    traceview: Command, tmp_path: Path, text: str, arguments: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(text)
    done = traceview("compare", "--history", path, *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1) and message in done.err
    assert path.read_text() == text
