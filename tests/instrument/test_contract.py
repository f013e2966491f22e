"""Tests that `traceview` finds iterations and phases by the names that `instrument` emits."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

pytest.importorskip("polars")

from instrument import annotate, ranges
from instrument.config.schema import Checkpoint, Config, Data, Model, Training
from instrument.config.strategies import STRATEGIES
from instrument.trainer.training_run import train
from tests.build_export import Nvtx, build_export
from traceview.model.analysis import Analysis, Iterations
from traceview.pipeline import analyze

STEPS = 6
OF_A_STEP = (ranges.DATA_LOAD, ranges.COPY, ranges.FORWARD, ranges.BACKWARD, ranges.OPTIMIZER)
COPIES_AHEAD = ("load", "pin")  # ranges of another thread, which are not phases of the step


@dataclass
class Recorder:
    """Records ranges in place of nsys, on a clock that counts events."""

    ranges: list[Nvtx] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ticks, self._of_thread = itertools.count(1), threading.local()

    def push(self, name: str | None) -> None:
        self._open.append((1000 * next(self._ticks), name))

    def pop(self) -> None:
        start, name = self._open.pop()
        thread = threading.get_native_id()
        self.ranges.append(Nvtx(start, 1000 * next(self._ticks), registered=name, thread=thread))

    @property
    def _open(self) -> list[tuple[int, str | None]]:
        return self._of_thread.__dict__.setdefault("open", [])


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    # Phases are created at import with the nvtx module of that time, so patch `annotate` instead.
    made = Recorder()
    monkeypatch.setattr(annotate, "__enter__", lambda self: made.push(self._name))
    monkeypatch.setattr(annotate, "__exit__", lambda *_raised: made.pop())
    return made


def config(strategy: str = "prefetch", device: str = "cpu", **training: object) -> Config:
    given = {"steps": STEPS, "sync": "2", "precision": "fp32", "device": device, **training}
    return Config(
        training=Training(strategy=strategy, **given),  # type: ignore[arg-type]
        model=Model(layers=1, width=16, heads=2, vocabulary=32, features=8),
        data=Data(batch=4, sequence=8, samples=64),
    )


def analyzed(recorder: Recorder, of: Config, folder: Path) -> Analysis:
    """Train with a configuration, and analyze the recorded ranges."""
    assert train(of, lambda _line: None).done == of.training.steps
    return analyze(build_export(folder / "run.sqlite", nvtx=recorder.ranges))


def iterations(of: Analysis) -> Iterations:
    assert isinstance(of.iterations, Iterations), of.iterations
    return of.iterations


def counts(of: Analysis) -> dict[str, int]:
    """Return the count of each range name, without the iterations and garbage collections."""
    assert isinstance(of.nvtx, tuple), of.nvtx
    whole = {one.name for one in iterations(of).per_iteration}
    return {use.name: use.count for use in of.nvtx if use.name not in whole and not use.name.startswith("gc ")}


def assert_finds_the_steps(found: Analysis) -> None:
    assert iterations(found).range == "iteration #"
    names = [iteration.name for iteration in iterations(found).per_iteration]
    assert names == [ranges.iteration_name(step) for step in range(STEPS)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_steps_and_phases_are_found(recorder: Recorder, strategy: str, tmp_path: Path) -> None:
    found = analyzed(recorder, config(strategy), tmp_path)
    assert_finds_the_steps(found)
    assert counts(found) == dict.fromkeys(OF_A_STEP, STEPS) | {ranges.SYNCHRONIZE: STEPS // 2}


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_names_are_the_same_on_a_gpu(recorder: Recorder, strategy: str, tmp_path: Path) -> None:
    found = analyzed(recorder, config(strategy, device="cuda"), tmp_path)
    assert_finds_the_steps(found)
    ours = {*OF_A_STEP, ranges.SYNCHRONIZE} | ({ranges.REPLAY} if strategy == "graph" else set())
    assert ours <= set(counts(found)) <= ours | {*COPIES_AHEAD}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_phases_lie_inside_their_iteration(recorder: Recorder, strategy: str, tmp_path: Path) -> None:
    analyzed(recorder, config(strategy), tmp_path)
    whole = [one for one in recorder.ranges if one.registered.startswith("iteration ")]
    parts = [one for one in recorder.ranges if one.registered in OF_A_STEP]
    assert len(parts) == len(OF_A_STEP) * STEPS
    for part in parts:
        around = [one for one in whole if one.start < part.start and part.end < one.end and one.thread == part.thread]
        assert len(around) == 1, part


def test_accumulation_steps_are_iterations(recorder: Recorder, tmp_path: Path) -> None:
    found = analyzed(recorder, config(accumulation=3), tmp_path)
    assert_finds_the_steps(found)
    times = counts(found)
    assert times["forward"] == times["backward"] == times["data_load"] == times["h2d"] == 3 * STEPS
    assert times["optimizer"] == STEPS


def test_checkpoint_is_a_phase(recorder: Recorder, tmp_path: Path) -> None:
    of = replace(config(), checkpoint=Checkpoint(folder=tmp_path / "kept", every=4))
    found = analyzed(recorder, of, tmp_path)
    assert_finds_the_steps(found)
    assert set(counts(found)) == {*ranges.PHASES} - {ranges.VALIDATE, ranges.REPLAY}  # not in this strategy
    assert counts(found)[ranges.CHECKPOINT] == 2  # after the fourth step, and the last


def test_module_ranges_hide_no_steps_or_phases(recorder: Recorder, tmp_path: Path) -> None:
    plain = counts(analyzed(recorder, config(), tmp_path))
    recorder.ranges.clear()
    found = analyzed(recorder, config(annotate_modules=3), tmp_path)
    assert_finds_the_steps(found)
    times = counts(found)
    assert len(times) > len(plain)
    assert {name: times[name] for name in plain} == plain


def test_wrapped_step_numbers_are_the_same_iteration(tmp_path: Path) -> None:
    steps = range(ranges.MAX_ITERATION_NAMES - 3, ranges.MAX_ITERATION_NAMES + 3)
    names = map(ranges.iteration_name, steps)
    rows = [Nvtx(10 * at, 10 * at + 9, registered=name) for at, name in enumerate(names, start=1)]
    found = iterations(analyze(build_export(tmp_path / "run.sqlite", nvtx=rows)))
    assert (found.range, found.count) == ("iteration #", 6)
