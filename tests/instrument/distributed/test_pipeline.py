"""Two ranks train as one process does, and every forward and backward of a micro-batch is a range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from docs.examples.pipeline_stages import pipeline_schedule, stage_blocks
from instrument import ranges
from instrument.distributed.world import World
from instrument.errors import ConfigError
from tests.instrument import ranks
from tests.instrument.test_ranges import Recorder, assert_nested

CPU = torch.device("cpu")
MICRO_BATCHES, STEPS = 4, 2


def blocks() -> list[Any]:
    torch.manual_seed(0)
    return [torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()).double() for _ in range(5)]


def batch() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(2, 8, 6, generator=generator, dtype=torch.float64)
    return inputs, targets


def pipelined(world: World, _folder: Path) -> Any:
    recorder = ranges.nvtx = Recorder()
    stage = stage_blocks(blocks(), world)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    schedule = pipeline_schedule(stage, world, CPU, MICRO_BATCHES, torch.nn.functional.mse_loss)
    (inputs, targets), means = batch(), []
    for _ in range(STEPS):
        losses: list[Any] = []
        if world.first:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, losses=losses)
            means.append(torch.stack(losses).mean().item())
        optimizer.step()
        optimizer.zero_grad()
    assert_nested(recorder.log)
    pushed = [name for what, name, _thread in recorder.log if what == "push"]
    return means, [weight.detach() for weight in stage.parameters()], pushed[: 2 * MICRO_BATCHES]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return ranks.run([pipelined], tmp_path_factory.mktemp("pipeline"))["pipelined"]


def test_pipeline_trains_as_one_process(two: list[Any]) -> None:
    model = torch.nn.Sequential(*blocks())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(STEPS):
        loss = torch.nn.functional.mse_loss(model(batch()[0]), batch()[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    (_, first, _), (means, second, _) = two
    torch.testing.assert_close(means, losses)
    torch.testing.assert_close([*first, *second], [weight.detach() for weight in model.parameters()])


def test_one_forward_one_backward_in_turn(two: list[Any]) -> None:
    (*_, first), (*_, last) = two
    expected = [(kind, number) for number in range(MICRO_BATCHES) for kind in ("forward", "backward")]
    assert last == [f"stage 1 {kind} {number}" for kind, number in expected]
    assert first[:3] == ["stage 0 forward 0", "stage 0 forward 1", "stage 0 backward 0"]
    assert sorted(first) == sorted(f"stage 0 {kind} {number}" for kind, number in expected)


def test_blocks_are_shared_in_order() -> None:
    shares = [stage_blocks(blocks(), World(rank, rank, 2)) for rank in range(2)]
    assert [len(share) for share in shares] == [3, 2]
    with pytest.raises(ConfigError, match="5 blocks cannot be shared by 6 ranks"):
        stage_blocks(blocks(), World(0, 0, 6))
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node 2"):
        pipeline_schedule(shares[0], World(), CPU, 2, torch.nn.functional.mse_loss)
