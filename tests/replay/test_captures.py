"""Replays of real captures, and predictions compared with captures after the change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import CAPTURES, H200, SAMPLES, analyzed, sample
from traceview.errors import RequestError
from traceview.model.analysis import Analysis
from traceview.replay.build import build
from traceview.replay.graph import replay
from traceview.replay.prediction import measured, predict, whatif
from traceview.replay.select import Selection, select

TRAINER = ["serial", "pinned", "prefetch", "staged", "graph", "ddp"]
FILES = [sample(f"trainer/{name}.sqlite") for name in TRAINER]
FILES += [sample(f"{name}.sqlite") for name in ("serial", "dual", "quad", "ddp2", "cudagraph")]
PAIRS = [
    ("trainer/serial", "trainer/pinned", "pin,sync"),
    ("trainer/pinned", "trainer/prefetch", "prefetch"),
    ("trainer/serial", "trainer/prefetch", "pin,prefetch,sync"),
    ("trainer/prefetch", "trainer/graph", "graph"),
    ("trainer/serial", "trainer/graph", "pin,prefetch,sync,graph"),
    ("serial", "dual", "pin,prefetch,sync"),
]


def analysis_of(path: Path) -> Analysis:
    return analyzed(path, costs=None)


def replay_error(path: Path) -> float:
    analysis = analysis_of(path)
    chosen = select(analysis)
    assert isinstance(chosen, Selection)
    return replay(build(analysis.trace, chosen)).per_iteration / chosen.measured_ns - 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_replay_error_of_samples(path: Path) -> None:
    assert abs(replay_error(path)) < 0.03


@pytest.mark.parametrize("name", H200)
def test_replay_error_of_captures(name: str) -> None:
    if not (CAPTURES / name).is_file():
        pytest.skip(f"{CAPTURES} lacks {name}")
    assert abs(replay_error(CAPTURES / name)) < 0.03


@pytest.mark.parametrize(("before", "after", "changes"), PAIRS)
def test_prediction_matches_measurement(before: str, after: str, changes: str) -> None:
    first, second = (analysis_of(SAMPLES / f"{name}.sqlite") for name in (before, after))
    prediction, truth = predict(first, changes.split(",")), measured(second)
    assert prediction.iteration_ns == pytest.approx(truth, rel=0.05)
    assert prediction.low_ns <= truth <= prediction.high_ns


def test_pinning_in_the_loop_gains_little() -> None:
    serial = analysis_of(sample("trainer/serial.sqlite"))
    assert predict(serial, ["pin-here"]).iteration_ns > 0.95 * measured(serial)
    assert predict(serial, ["pin"]).iteration_ns < 0.55 * measured(serial)


def test_prediction_errors() -> None:
    serial = analysis_of(sample("trainer/serial.sqlite"))
    with pytest.raises(RequestError, match="pin that memory first"):
        predict(serial, ["prefetch"])
    with pytest.raises(RequestError, match="unknown change 'magic'"):
        predict(serial, ["magic"])
    with pytest.raises(RequestError, match="no kernel called magic"):
        whatif(serial, faster_kernels={"magic": 2.0})
