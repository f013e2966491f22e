from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from instrument.hf import AsyncTrainer  # noqa: E402
from tests.instrument.hf.tiny import Texts, trained, trainer  # noqa: E402
from tests.instrument.test_ranges import Recorder, assert_nested  # noqa: E402


def test_model_errors_close_every_range(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("overflow")

    made = trainer(tmp_path)
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="overflow"):
        patched.setattr(torch.optim.AdamW, "step", fail)
        made.train()
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="overflow"):
        patched.setattr(made.model, "forward", fail)
        made.train()
    assert_nested(recorder.log)
    assert recorder.words.count("push iteration 0") == recorder.words.count("pop iteration 0") == 2


@pytest.mark.parametrize("enabled", [True, False])
def test_phases_are_inside_their_iteration(tmp_path: Path, recorder: Recorder, enabled: bool) -> None:
    trained(
        tmp_path,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        save_strategy="steps",
        save_steps=3,
        eval_strategy="steps",
        eval_steps=3,
        eval_dataset=Texts(4),
        enable_async_dataloader=enabled,
    )
    assert_nested(recorder.log)
    held = phases_by_iteration(recorder)
    micro_batch = {"data_load": 2} | ({"h2d": 2} if enabled else {}) | {"forward": 2, "backward": 2, "optimizer": 2}
    first = micro_batch | ({"data_load": 3} if enabled else {})  # one before the loader runs ahead
    assert held == {
        "iteration 0": first,
        "iteration 1": micro_batch,
        "iteration 2": micro_batch | {"validate": 1, "checkpoint": 1},
    }


def phases_by_iteration(recorder: Recorder) -> dict[str, dict[str, int]]:
    """Count, for each iteration, the phases of its thread that lie directly inside it."""
    here = threading.get_ident()
    held: dict[str, Counter[str]] = {}
    inside: list[str] = []
    for what, name, thread in recorder.log:
        if thread != here:
            continue
        if what == "pop":
            inside.pop()
            continue
        if name.startswith("iteration"):
            held[name] = Counter()
        elif len(inside) == 1 and inside[0].startswith("iteration"):
            held[inside[0]][name] += 1
        inside.append(name)
    return {name: dict(phases) for name, phases in held.items()}


def test_resumed_run_continues_the_iteration_numbers(tmp_path: Path, recorder: Recorder) -> None:
    trained(tmp_path, save_strategy="steps", save_steps=3, max_steps=5)
    recorder.log.clear()
    trained(tmp_path, save_strategy="steps", save_steps=3, max_steps=5, resume=tmp_path / "checkpoint-3")
    assert list(phases_by_iteration(recorder)) == ["iteration 3", "iteration 4"]


@pytest.mark.parametrize("enabled", [True, False])
def test_every_loss_has_the_time_of_a_step(tmp_path: Path, enabled: bool) -> None:
    made = trained(tmp_path, AsyncTrainer, "cpu", data=Texts(8), num_train_epochs=1, enable_async_dataloader=enabled)
    entries = [entry for entry in made.state.log_history if "loss" in entry]
    assert len(entries) == 2
    assert entries[1]["perf/step_ms"] > 0
    assert "perf/step_ms" not in made.state.log_history[-1]
