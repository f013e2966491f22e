from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from instrument.config.schema import Config, Monitor
from instrument.errors import ConfigError
from instrument.monitor import open_sinks
from instrument.monitor.services import TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the values that TensorBoard shows."""
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def write(folder: Path, numbers: range, *, resumed_at: int | None = None, offset: float = 0) -> None:
    sink = TensorBoard(folder, resumed_at=resumed_at)
    for step in numbers:
        sink.write(step, {"loss": step + offset})
    sink.close()


def test_tensorboard_shows_every_measured_value(tmp_path: Path) -> None:
    sink = open_sinks(Config(monitor=Monitor(tensorboard=tmp_path / "a" / "events")))
    sink.write(9, {"loss": 2.5, "perf/step_ms": 8.0, "perf/power_w": None})
    sink.write(19, {"loss": 1.5, "perf/step_ms": None, "perf/memory_peak_bytes": 1 << 30})
    sink.close()
    assert scalars(tmp_path / "a" / "events") == {
        "loss": [(9, 2.5), (19, 1.5)],
        "perf/step_ms": [(9, 8.0)],
        "perf/memory_peak_bytes": [(19, 1 << 30)],
    }


def test_non_finite_loss_is_shown(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path)
    sink.write(0, {"loss": math.nan})
    sink.close()
    ((step, value),) = scalars(tmp_path)["loss"]
    assert step == 0
    assert math.isnan(value)


def test_repeated_steps_are_shown_once(tmp_path: Path) -> None:
    write(tmp_path, range(10))
    write(tmp_path, range(6, 12), resumed_at=6, offset=0.5)
    assert scalars(tmp_path)["loss"] == [(step, float(step)) for step in range(6)] + [
        (step, step + 0.5) for step in range(6, 12)
    ]


def test_new_run_in_the_same_folder_is_shown_alone(tmp_path: Path) -> None:
    write(tmp_path, range(5))
    write(tmp_path, range(3), offset=0.5)
    assert scalars(tmp_path)["loss"] == [(0, 0.5), (1, 1.5), (2, 2.5)]


def test_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError) as refused:
        TensorBoard(file)
    assert str(refused.value) == f"monitor.tensorboard: cannot write to {file}: File exists"
