"""The validation loss: where it goes, and that it changes nothing of the training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from instrument.checkpoint.folder import BEST
from instrument.config.schema import Checkpoint, Config, Data, Model, Monitor, Training
from instrument.errors import ConfigError
from instrument.trainer.optimizer import LearningRateSchedule
from instrument.trainer.training_run import train
from instrument.trainer.validation import Validation

PLAIN = Config(
    training=Training(precision="fp32", device="cpu", steps=6, learning_rate=0.01),
    model=Model(layers=1, width=16, heads=2, vocabulary=32, features=8),
    data=Data(batch=2, sequence=4, samples=16, validation_batches=3),
    monitor=Monitor(progress=False),
)


def validating(config: Config, **training: Any) -> Config:
    return replace(config, training=replace(config.training, **{"validate_every": 2, **training}))


def test_training_does_not_change(tmp_path: Path) -> None:
    records = tmp_path / "run.jsonl"
    config = replace(validating(PLAIN), monitor=Monitor(progress=False, jsonl=records, every=100))
    assert train(config, print).losses == train(PLAIN, print).losses
    written = [json.loads(line) for line in records.read_text().splitlines()]
    losses = [(record["step"], record["validation/loss"]) for record in written if "validation/loss" in record]
    assert [step for step, _loss in losses] == [1, 3, 5]
    assert len({loss for _step, loss in losses}) == 3


def test_best_checkpoint_has_the_lowest_validation_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(Validation, "_measure", lambda _self: {"validation/loss": next(losses)})
    train(replace(validating(PLAIN), checkpoint=Checkpoint(tmp_path, every=2)), print)
    best = torch.load(tmp_path / BEST, weights_only=False)
    assert (best["step"], best["loss"]) == (4, 1.0)


def test_validation_needs_data_of_its_own() -> None:
    data = replace(PLAIN.data, path=Path("code:data"))
    with pytest.raises(ConfigError, match="the run needs data that it does not train on; use --validation"):
        replace(validating(PLAIN), model=replace(PLAIN.model, name="code:Net"), data=data)


def test_plateau_halves_the_rate_and_survives_a_checkpoint() -> None:
    with pytest.raises(ConfigError, match="plateau needs a validation loss"):
        replace(PLAIN, training=replace(PLAIN.training, schedule="plateau"))
    training = Training(schedule="plateau", patience=1, learning_rate=0.8, validate_every=1)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = LearningRateSchedule(optimizer, training, 100)
    rates = []
    for loss in (5.0, 4.0, 4.0, float("nan"), 4.5, 4.5, 3.0):
        schedule.report(loss)
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.8, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2]
    again = LearningRateSchedule(optimizer, training, 100)
    again.load_state_dict(schedule.state_dict())
    assert again.state_dict() == schedule.state_dict()
    again.report(3.0)
    again.report(3.0)
    assert again.rate_fraction(0) == 0.125


def test_stopped_run_without_a_folder_is_saved(in_an_empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(PLAIN, print)
    assert list(in_an_empty_folder.iterdir()) == []  # a run on synthetic data that ends leaves nothing
    monkeypatch.setattr(Validation, "_measure", lambda _self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(validating(PLAIN), print)
    (path,) = in_an_empty_folder.glob("runs/*/*.pt")
    resumed = train(replace(PLAIN, checkpoint=Checkpoint(resume=str(path))), print)
    assert (resumed.first, resumed.done) == (2, 6)
