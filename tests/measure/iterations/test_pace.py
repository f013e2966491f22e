"""Iterations on a grid that something outside the program sets, against loops whose deviations add up."""

from __future__ import annotations

import numpy as np
import pytest

from tests.captures import CAPTURES
from traceview.measure.iterations.pace import grid_of, pace_ns
from traceview.pipeline import analyze


@pytest.mark.parametrize("seed", range(5))
def test_grid_and_loop(seed: int) -> None:
    random = np.random.default_rng(seed)
    jitter = random.normal(0, 0.05, 500)
    on_grid = np.sort((np.arange(500) + jitter) * 6_944_444).astype(np.int64)
    assert grid_of(on_grid) == pytest.approx(6_944_444, rel=1e-4)
    loop = np.cumsum(6_944_444 * (1 + jitter)).astype(np.int64)
    assert grid_of(loop) is None
    steady = (np.arange(500) * 6_944_444 * (1 + random.normal(0, 1e-6, 500))).astype(np.int64)
    assert grid_of(steady) is None, "a loop of equal steps looks like a grid, and is none"


def test_display_of_a_public_capture() -> None:
    path = CAPTURES / "public/pathtrace.sqlite.xz"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    analysis = analyze(path)
    assert pace_ns(analysis) == pytest.approx(1e9 / 144, rel=2e-3)
    first, *others = analysis.findings
    assert "A display sets the pace: 144 iterations a second" in first.title
    assert all(finding.gain.ns == 0 for finding in others if not finding.once)
