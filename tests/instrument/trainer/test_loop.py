"""A non-finite loss or gradient: the run stops or skips the step, and which states it keeps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from instrument import workload
from instrument.checkpoint.folder import Checkpoints
from instrument.config.schema import Checkpoint, Config, Data, Model, Monitor, Training
from instrument.config.strategies import STRATEGIES
from instrument.data import Synthetic
from instrument.models import Transformer
from instrument.trainer.messages import Outcome
from instrument.trainer.training_run import train
from tests.instrument.checkpoint.test_folder import names

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
BATCH = 2


def config(folder: Path | None = None, *, every: int = 4, keep: int = 2, **training: Any) -> Config:
    defaults = {"precision": "fp32", "device": "cpu", "strategy": "serial", "steps": 30}
    return Config(
        training=Training(**defaults | training),
        model=Model(layers=1, width=16, heads=2, vocabulary=32, features=8),
        data=Data(batch=BATCH, sequence=4, samples=200, distinct_batches=0),
        checkpoint=Checkpoint(folder=folder, every=every if folder else 0, keep=keep),
        monitor=Monitor(progress=False),
    )


def run(made: Config) -> tuple[Outcome, list[str]]:
    said: list[str] = []
    return train(made, said.append), [line for line in said if not line.startswith(("device ", "without a GPU"))]


def poison(monkeypatch: pytest.MonkeyPatch, batches: range | set[int], value: float = math.nan) -> None:
    """Replace the inputs of these batches, counted from 0, by NaN."""
    make = Synthetic.__getitem__

    def poisoned(samples: Any, index: int) -> Any:
        sample = dict(make(samples, index))
        if index // BATCH in batches:
            sample["inputs"] = torch.full_like(sample["inputs"], value)
        return sample

    monkeypatch.setattr(Synthetic, "__getitem__", poisoned)


def newest(folder: Path) -> dict[str, Any]:
    path = Checkpoints(folder).latest()
    assert path is not None
    contents: dict[str, Any] = torch.load(path, map_location="cpu")
    return contents


def assert_same_state(left: dict[str, Any], right: dict[str, Any]) -> None:
    for name, weight in left["parts"]["model"].items():
        assert torch.equal(weight, right["parts"]["model"][name]), name
    states = left["parts"]["optimizer"]["state"], right["parts"]["optimizer"]["state"]
    assert states[0].keys() == states[1].keys()
    for number, values in states[0].items():
        assert all(torch.equal(value, states[1][number][name]) for name, value in values.items())
    assert left["parts"]["schedule"] == right["parts"]["schedule"]
    assert left["extra"] == right["extra"]


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("sync", ["every", "10", "event"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_run_stops_before_the_first_bad_step(
    strategy: str, sync: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {"strategy": strategy, "sync": sync, "device": device, "accumulation": 2 if strategy == "staged" else 1}
    poison(monkeypatch, range(5 * how["accumulation"], 200))
    outcome, _said = run(config(tmp_path, **how))
    assert outcome.exit_code == 1
    assert outcome.failure is not None and outcome.failure.startswith("the loss or gradient of step 5 is not finite; ")
    assert all(map(math.isfinite, outcome.losses[:5])) and all(map(math.isnan, outcome.losses[5:]))
    assert names(tmp_path) == ["0001-step-4.pt", "0002-step-5-emergency.pt", "best.pt"]
    kept = newest(tmp_path)
    assert (kept["step"], kept["reason"]) == (5, "the loss or gradient of step 5 is not finite")
    assert kept["parts"]["schedule"]["step_count"] == 5
    assert all(bool(weight.isfinite().all()) for weight in kept["parts"]["model"].values())


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("precision", ["fp32", "bf16", pytest.param("fp16", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize("strategy", ["serial", "prefetch", "staged", "graph"])
def test_kept_state_equals_a_shorter_run(
    strategy: str, clip: float | None, precision: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if precision == "fp16" and (device == "cpu" or strategy == "graph"):
        pytest.skip("is refused by the configuration")
    how = {"strategy": strategy, "precision": precision, "device": device, "clip": clip, "schedule": "constant"}
    poison(monkeypatch, range(5, 200))
    run(config(tmp_path / "stopped", **how))
    run(config(tmp_path / "five", **how, steps=5))
    assert_same_state(newest(tmp_path / "stopped"), newest(tmp_path / "five"))


def test_run_continues_from_kept_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _said = run(config(steps=12))
    with pytest.MonkeyPatch.context() as poisoned:
        poison(poisoned, range(5, 200))
        stopped, _said = run(config(tmp_path, steps=12, sync="10"))
    made = config(tmp_path, steps=12)
    resumed, _said = run(replace(made, checkpoint=replace(made.checkpoint, resume="latest")))
    assert stopped.losses[:5] + resumed.losses == whole.losses


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_skip_reports_skipped_updates(
    strategy: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, {3, 7}, value=math.inf)
    outcome, said = run(config(tmp_path, strategy=strategy, device=device, on_nan="skip", steps=12))
    assert outcome.exit_code == 0 and outcome.failure is None
    assert [step for step, loss in enumerate(outcome.losses) if not math.isfinite(loss)] == [3, 7]
    assert said[-1:] == ["non-finite loss or gradient in 2 of 12 steps (first: step 3); their updates were skipped"]
    parts = newest(tmp_path)["parts"]
    assert all(bool(weight.isfinite().all()) for weight in parts["model"].values())
    assert {float(state["step"]) for state in parts["optimizer"]["state"].values()} == {10.0}


class WithoutGradient(torch.nn.Module):
    """The trainer's model with a finite loss, whose gradient is not a number."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Any:
        weight = next(self.model.parameters())
        return self.model(batch) + (weight * 0).sum().sqrt()


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_non_finite_gradient_stops_the_run(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "Transformer", lambda *about: WithoutGradient(Transformer(*about)))
    outcome, _said = run(config(tmp_path, device=device))
    assert outcome.exit_code == 1
    assert outcome.failure == (
        "the loss or gradient of step 0 is not finite, and this run has no earlier step to save; "
        "use a smaller --learning-rate or --on-nan skip"
    )
    assert names(tmp_path) == []


def test_continue_keeps_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, range(5, 200))
    outcome, said = run(config(tmp_path, on_nan="continue", every=2, steps=20))
    assert outcome.exit_code == 0
    assert said == ["non-finite loss or gradient in 15 of 20 steps (first: step 5); their updates were applied"]
    assert names(tmp_path) == ["0001-step-2.pt", "0002-step-4.pt", "best.pt"]
    kept = torch.load(tmp_path / "0002-step-4.pt")
    assert all(bool(weight.isfinite().all()) for weight in kept["parts"]["model"].values())
    assert torch.load(tmp_path / "best.pt")["step"] <= 4


def test_good_run_keeps_the_requested_number(tmp_path: Path) -> None:
    outcome, said = run(config(tmp_path, every=2, keep=1, steps=9))
    assert (outcome.exit_code, said) == (0, [])
    assert names(tmp_path)[:1] == ["0005-step-9.pt"] and len(names(tmp_path)) == 2


def test_bad_loss_without_folder_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, range(5, 200))
    outcome, said = run(config())
    assert (outcome.exit_code, said) == (1, [])
    assert "the state after step 4 is saved in runs/" in str(outcome.failure)
