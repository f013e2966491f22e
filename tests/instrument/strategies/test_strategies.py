"""All strategies give the losses and the weights of the plain loop."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from instrument.config.schema import Config, Data, Model, Training
from instrument.config.strategies import STRATEGIES
from instrument.monitor.meter import StepMeter
from instrument.strategies import strategy_class
from instrument.trainer.learner import Learner
from tests.instrument.loaders import build_loader
from tests.instrument.models.tiny import build

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
MODEL = Model(layers=2, width=32, heads=4, vocabulary=64, features=16)


def config(strategy: str, **training: object) -> Config:
    return Config(
        training=Training(strategy=strategy, **({"precision": "fp32"} | training)),  # type: ignore[arg-type]
        model=MODEL,
        data=Data(batch=4, sequence=8, samples=64),
    )


def trained(of: Config, device_name: str, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Run a few steps; return the losses and the weights."""
    device = torch.device(device_name, 0 if device_name == "cuda" else None)
    torch.manual_seed(of.training.seed)
    learner = Learner(build(of.model, of.data, device), of.training, max(steps, 1), device)
    meter = StepMeter(device)
    strategy = strategy_class(of.training.strategy)(of, learner, meter)
    batches = strategy.batches(build_loader(of, endless=True))
    losses = []
    for step in range(steps):
        meter.begin(step)
        losses.append(strategy.step([next(batches) for _ in range(of.training.accumulation)]).clone())
    strategy.close()
    return [float(loss) for loss in losses], {name: one.cpu() for name, one in learner.model.state_dict().items()}


def equal(one: object, other: object) -> None:
    assert one[0] == other[0]  # type: ignore[index]
    for name, weights in one[1].items():  # type: ignore[index]
        assert torch.equal(weights, other[1][name]), name  # type: ignore[index]


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("steps", [0, 1, 9])
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "serial"])
def test_every_strategy_equals_the_plain_loop(strategy: str, steps: int, device: str) -> None:
    equal(trained(config(strategy), device, steps), trained(config("serial"), device, steps))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("accumulation", [2, 3])
@pytest.mark.parametrize("strategy", ["pinned", "prefetch", "streams", "staged"])
def test_accumulation_adds_in_the_same_order(strategy: str, accumulation: int, device: str) -> None:
    several, plain = (config(name, accumulation=accumulation) for name in (strategy, "serial"))
    equal(trained(several, device, 5), trained(plain, device, 5))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("strategy", ["prefetch", "streams", "staged", "graph"])
def test_precisions(strategy: str, precision: str) -> None:
    if strategy == "graph" and precision == "fp16":
        pytest.skip("is refused by the configuration")
    accumulation = 2 if strategy == "staged" else 1
    both = [config(name, precision=precision, accumulation=accumulation) for name in (strategy, "serial")]
    equal(trained(both[0], "cuda", 8), trained(both[1], "cuda", 8))


@pytest.mark.gpu
def test_stream_for_backward_stays_empty(tmp_path: Path) -> None:
    with torch.profiler.profile() as profile:
        trained(config("streams"), "cuda", 3)
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = Counter(event["args"]["stream"] for event in events if event.get("cat") == "kernel")
    copies = {event["args"]["stream"] for event in events if event.get("name", "").startswith("Memcpy HtoD (Pinned")}
    busy = {stream for stream, count in kernels.items() if count > 20}
    assert len(busy) == 2  # forward and backward, and optimizer
    assert copies - busy
