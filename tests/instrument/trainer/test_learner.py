"""Forward, backward and update equal a plain training step, in each precision and with micro-batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from instrument.config.schema import Training
from instrument.trainer import learner as learner_module
from instrument.trainer.learner import Learner

CPU = torch.device("cpu")
Batch = dict[str, torch.Tensor]


class Fit(torch.nn.Module):
    """A line fitted to points; its loss is large, so that clipping at 1 has an effect."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.line, self.frozen, self.scale = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1), scale
        self.frozen.requires_grad_(False)
        self.computed_in: torch.dtype | None = None

    def forward(self, batch: Batch) -> torch.Tensor:
        out = self.line(batch["x"])
        self.computed_in = out.dtype
        return self.scale * (out.float() - batch["y"]).square().mean()


def batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(8, 4, generator=generator), "y": torch.randn(8, 1, generator=generator)}


def settings(**given: object) -> Training:
    return Training(**({"precision": "fp32", "schedule": "constant", "clip": None} | given))  # type: ignore[arg-type]


def learner(training: Training, scale: float = 1.0, steps: int = 10) -> Learner:
    return Learner(Fit(scale), training, steps, CPU)


def weights(of: Learner) -> list[torch.Tensor]:
    return [one.detach().clone() for one in of.model.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


def plain(clip: float | None, scale: float, steps: int) -> list[torch.Tensor]:
    """Return the weights after the same steps in plain torch."""
    model = Fit(scale)
    groups = [{"params": [model.line.weight]}, {"params": [model.line.bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, weight_decay=0.01)
    for step in range(steps):
        model(batch(step)).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.line.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return [one.detach().clone() for one in model.parameters()]


@pytest.mark.parametrize(("clip", "scale"), [(None, 1.0), (1.0, 1.0), (1.0, 100.0)])
def test_step_equals_a_plain_torch_step(clip: float | None, scale: float) -> None:
    of = learner(settings(clip=clip), scale)
    for step in range(5):
        of.backward(of.forward(batch(step)))
        of.update()
    assert same(weights(of), plain(clip, scale, 5))


def test_clipping_changes_training() -> None:
    assert not same(plain(1.0, 100.0, 5), plain(None, 100.0, 5))


def test_given_gradients_are_the_accumulated_ones() -> None:
    one, other = learner(settings(clip=1.0)), learner(settings(clip=1.0))
    for step in range(5):
        halves = [batch(2 * step), batch(2 * step + 1)]
        for half in halves:
            one.backward(one.forward(half), 0.5)
        one.update()
        first, second = (other.gradients(other.forward(half), 0.5) for half in halves)
        assert all(parameter.grad is None for parameter in other.parameters)
        other.update([left + right for left, right in zip(first, second, strict=True)])
    assert same(weights(one), weights(other))


def test_weights_shared_with_another_module() -> None:
    of, twin = learner(settings()), Fit()
    assert torch.equal(of.forward(batch(0), twin), of.forward(batch(0)))
    found = of.gradients(of.forward(batch(0), twin), 1.0, list(twin.line.parameters()))
    expected = of.gradients(of.forward(batch(0)))
    assert same(found, expected)


def test_frozen_parameters_do_not_change() -> None:
    of = learner(settings(weight_decay=0.5))
    before = of.model.frozen.weight.clone()
    assert len(of.parameters) == 2
    of.backward(of.forward(batch(0)))
    of.update()
    assert torch.equal(of.model.frozen.weight, before)


@pytest.mark.parametrize(("end", "rate"), [(Learner.update, 0.3), (Learner.clear, 0.4)])
def test_update_and_clear_drop_gradients_and_an_update_steps_the_schedule(end: Any, rate: float) -> None:
    of = learner(settings(schedule="linear", learning_rate=0.4), steps=4)
    of.backward(of.forward(batch(0)))
    assert all(parameter.grad is not None for parameter in of.parameters)
    end(of)
    assert all(parameter.grad is None for parameter in of.parameters)
    assert of.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_precision(precision: str, dtype: torch.dtype) -> None:
    of = learner(settings(precision=precision))
    loss = of.forward(batch(0))
    assert of.model.computed_in is dtype
    assert loss.dtype is torch.float32
    of.backward(loss)
    assert all(parameter.grad is not None and parameter.grad.dtype is torch.float32 for parameter in of.parameters)
    assert not torch.is_autocast_enabled("cpu")


def test_failed_forward_leaves_autocast() -> None:
    of = learner(settings(precision="bf16"))
    with pytest.raises(KeyError):
        of.forward({})
    assert not torch.is_autocast_enabled("cpu")


def test_each_part_is_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []

    class Noted:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            entered.append(self.name)

        def __exit__(self, *_raised: object) -> None:
            entered.append(f"/{self.name}")

    for name in ("forward", "backward", "optimizer"):
        monkeypatch.setattr(learner_module, f"_{name.upper()}", Noted(name))
    of = learner(settings())
    of.backward(of.forward(batch(0)))
    of.update()
    of.update(of.gradients(of.forward(batch(1))))
    step = ["forward", "/forward", "backward", "/backward", "optimizer", "/optimizer"]
    assert entered == step * 2


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_no_part_synchronizes_a_gpu(precision: str) -> None:
    device = torch.device("cuda")
    of = Learner(Fit().to(device), settings(precision=precision, clip=1.0), 10, device)
    moved = {name: tensor.to(device) for name, tensor in batch(0).items()}
    for _ in range(3):
        of.backward(of.forward(moved))
        of.update()
    torch.cuda.set_sync_debug_mode("error")
    try:
        of.backward(of.forward(moved))
        of.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.isfinite(one).all() for one in of.parameters)
