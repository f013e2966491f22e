"""Two real processes train as one would with their batches together: DDP and FSDP2, losses and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from instrument.config.schema import Config, Data, Distributed, Model, Training
from instrument.distributed.world import World
from instrument.distributed.wrap import gradient_reduction, unwrap, wrap
from instrument.trainer.learner import Learner
from tests.instrument import ranks
from tests.instrument.loaders import build_loader
from tests.instrument.models.tiny import build

CPU = torch.device("cpu")
DTYPES = {"inputs": torch.float64, "targets": torch.int64}
STEPS = 4
CONFIG = Config(
    training=Training(precision="fp32", device="cpu", steps=STEPS, learning_rate=0.01),
    model=Model(layers=2, width=16, heads=2, vocabulary=32, features=8),
    data=Data(batch=3, sequence=6, samples=200),
    distributed=Distributed(bucket_mb=0.01),
)


def where(world: World) -> torch.device:
    return torch.device(world.device_type, world.local_rank) if world.device_type == "cuda" else CPU


def learner(config: Config, world: World) -> Learner:
    device = where(world)
    torch.manual_seed(world.rank)  # ranks begin as the first one, whatever they were made with
    model = build(config.model, config.data, device).double()
    return Learner(wrap(model, config.distributed, world, device), config.training, STEPS, device)


def train(config: Config, world: World) -> tuple[list[float], Mapping[str, Any]]:
    """Return the losses of this rank and the weights in the end."""
    taught, losses = learner(config, world), []
    batches = iter(build_loader(config, rank=world.rank, world=world.size))
    count = config.training.accumulation
    for _ in range(STEPS):
        for micro in range(count):
            batch = {name: value.to(where(world), DTYPES[name]) for name, value in next(batches).items()}
            last = micro == count - 1
            with gradient_reduction(taught.model, last):
                loss = taught.forward(batch)
                taught.backward(loss, 1 / count)
            losses.append(loss.item())
        taught.update()
    weights = unwrap(taught.model).state_dict()
    whole = {name: getattr(value, "full_tensor", lambda value=value: value)() for name, value in weights.items()}
    return losses, {name: value.cpu().clone() for name, value in whole.items()}


def with_(config: Config, *, accumulation: int = 1, batch: int | None = None, **distributed: Any) -> Config:
    return replace(
        config,
        training=replace(config.training, accumulation=accumulation),
        data=replace(config.data, batch=batch or config.data.batch),
        distributed=replace(config.distributed, **distributed),
    )


SCENARIOS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp_in_one_bucket": {"bucket_mb": 25},
    "ddp_accumulating": {"accumulation": 2},
    "sharded": {"shard": True},
    "sharded_gathering_ahead": {"shard": True, "reshard_after_forward": False, "shard_prefetch": 1},
    "sharded_accumulating": {"shard": True, "accumulation": 2},
}


def scenarios(world: World, _folder: Path) -> Any:
    return {name: train(with_(CONFIG, **how), world) for name, how in SCENARIOS.items()}


def gathered_in_bf16(world: World, _folder: Path) -> Any:
    """Return the dtypes of a block's parameter in forward, of its gradient and of its shard, and the loss."""
    config = with_(replace(CONFIG, training=replace(CONFIG.training, precision="bf16")), shard=True)
    config = replace(config, distributed=replace(config.distributed, shard_precision="bf16"))
    wrapped = wrap(build(config.model, config.data, CPU), config.distributed, world, CPU)
    taught, block = Learner(wrapped, config.training, STEPS, CPU), wrapped.blocks[0]
    seen = []
    block.mlp.register_forward_pre_hook(lambda module, _inputs: seen.append(module[0].weight.dtype))
    loss = taught.forward(next(iter(build_loader(config, rank=world.rank, world=world.size))))
    taught.backward(loss)
    weight = block.mlp[0].weight
    return [*seen, weight.grad.dtype, weight.dtype, bool(torch.isfinite(loss))]


def blocks_sharded(world: World, _folder: Path) -> Any:
    model = learner(with_(CONFIG, shard=True), world).model
    return [name for name, module in model.named_modules() if hasattr(module, "set_requires_gradient_sync")]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Any]]:
    found = ranks.run((scenarios, blocks_sharded, gathered_in_bf16), tmp_path_factory.mktemp("two"))
    return {**found, **by_name(found["scenarios"])}


def by_name(results: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [of_rank[name] for of_rank in results] for name in SCENARIOS}


@pytest.fixture(scope="module")
def two_gpus(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Any]]:
    return by_name(ranks.run((scenarios,), tmp_path_factory.mktemp("gpus"), device="cuda")["scenarios"])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_ranks_equal_one_process_with_both_batches(two: Mapping[str, list[Any]], scenario: str) -> None:
    equals_one_process(two[scenario], scenario)


@pytest.mark.gpu(2)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_gpus_equal_one_process_with_both_batches(two_gpus: Mapping[str, list[Any]], scenario: str) -> None:
    # A GPU adds up in another order, and Adam divides each gradient by its own size: nearly zero ones show it.
    equals_one_process(two_gpus[scenario], scenario, rtol=1e-6, atol=1e-9)


def equals_one_process(results: list[Any], scenario: str, *, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    count = 2 if "accumulating" in scenario else 1
    losses, weights = train(with_(CONFIG, accumulation=count, batch=2 * CONFIG.data.batch), World())
    (first, shared), (second, _) = results
    torch.testing.assert_close([(a + b) / 2 for a, b in zip(first, second, strict=True)], losses, rtol=rtol, atol=0)
    assert shared.keys() == weights.keys()
    torch.testing.assert_close(shared, weights, rtol=rtol, atol=atol)


def test_all_ranks_have_the_same_weights(two: Mapping[str, list[Any]]) -> None:
    (_, first), (_, second) = two["ddp"]
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_each_block_is_sharded_separately(two: Mapping[str, list[Any]]) -> None:
    assert two["blocks_sharded"] == [["", "blocks.0", "blocks.1"]] * 2


def test_parameters_are_gathered_in_bf16_and_kept_in_fp32(two: Mapping[str, list[Any]]) -> None:
    assert two["gathered_in_bf16"] == [[torch.bfloat16, torch.float32, torch.float32, True]] * 2


def test_one_process_is_not_wrapped() -> None:
    model = torch.nn.Linear(2, 2)
    assert wrap(model, Distributed(), World(), CPU) is model
    assert unwrap(model) is model
    with gradient_reduction(model, False):
        model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None
