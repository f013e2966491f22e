"""Checkpoints of several ranks: written by one, whole, and fit for as many ranks as go on with them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from instrument.checkpoint import file
from instrument.checkpoint.resume import load
from instrument.config.schema import Checkpoint, Config, Data, Distributed, Model, Training
from instrument.data import Position
from instrument.distributed.checkpoints import checkpoint_parts, shared_checkpoints
from instrument.distributed.world import World
from instrument.distributed.wrap import wrap
from instrument.errors import InstrumentError
from instrument.trainer.learner import Learner
from tests.instrument import ranks
from tests.instrument.loaders import build_loader
from tests.instrument.models.tiny import build

CPU = torch.device("cpu")
DTYPES = {"inputs": torch.float64, "targets": torch.int64}
CONFIG = Config(
    training=Training(precision="fp32", device="cpu", steps=6, learning_rate=0.01, warmup=2),
    model=Model(layers=2, width=16, heads=2, vocabulary=32, features=8),
    data=Data(batch=3, sequence=6, samples=200),
)


class Run:
    """A small training on one of several ranks, in what it keeps like the real one."""

    def __init__(self, world: World, folder: Path, seed: int, *, sharded: bool = False) -> None:
        torch.manual_seed(100 * seed + world.rank)
        distributed = Distributed(shard=sharded and world.size > 1)
        self.config = replace(CONFIG, checkpoint=Checkpoint(folder, keep=2, sharded=sharded), distributed=distributed)
        self.world, self.said = world, list[str]()
        self.device = torch.device(world.device_type, world.local_rank) if world.device_type == "cuda" else CPU
        model = build(CONFIG.model, CONFIG.data, self.device).double()  # Adam makes much of float32's last bits
        self.learner = Learner(
            wrap(model, self.config.distributed, world, self.device), CONFIG.training, 6, self.device
        )
        self.parts = checkpoint_parts(self.learner, world, shared=not sharded)
        self.checkpoints = shared_checkpoints(self.config, world, self.said.append)

    def train(self, first: int, last: int) -> Run:
        start = Position(0, first)
        batches = iter(build_loader(self.config, rank=self.world.rank, world=self.world.size, start=start))
        for _ in range(first, last):
            batch = {name: value.to(self.device, DTYPES[name]) for name, value in next(batches).items()}
            self.learner.backward(self.learner.forward(batch))
            self.learner.update()
        return self

    def end(self) -> dict[str, Any]:
        """Return all that a checkpoint would keep, and the numbers that this rank draws next."""
        states = {name: part.state_dict() for name, part in self.parts.items() if name != "random"}
        return {**copy.deepcopy(states), "draws": torch.rand(3, device=self.device)}


def ddp(world: World, folder: Path) -> Any:
    return _unbroken_and_resumed(world, folder / "ddp")


def _unbroken_and_resumed(world: World, folder: Path) -> Any:
    first = Run(world, folder, seed=1).train(0, 3)
    assert first.checkpoints.start(None, first.parts) is None
    path = first.checkpoints.save(3, first.parts, loss=0.5 + world.rank, extra={"position": [0, 3]})
    unbroken = first.train(3, 6).end()
    second = Run(world, folder, seed=2).train(7, 9)
    resumed = second.checkpoints.start("latest", second.parts, second.device)
    assert resumed is not None
    assert (resumed.step, resumed.loss, resumed.path) == (3, 0.5, path)
    return unbroken, second.train(3, 6).end()


def damaged(world: World, folder: Path) -> Any:
    """Both ranks go back to the checkpoint before one that is cut off."""
    first = Run(world, folder / "damaged", seed=1).train(0, 1)
    first.checkpoints.save(1, first.parts)
    path = first.checkpoints.save(2, first.train(1, 2).parts)
    if world.first:
        path.write_bytes(path.read_bytes()[:-100])
    second = Run(world, folder / "damaged", seed=2)
    resumed = second.checkpoints.start("latest", second.parts)
    return (resumed and resumed.step), second.said


def from_one_process(world: World, folder: Path) -> Any:
    run = Run(world, folder / "onwards", seed=4)
    load(folder / "one", run.parts, run.device, config=run.config)
    return run.end()


def an_agreed_stop(world: World, folder: Path) -> Any:
    """The rank that got the signal calls emergency, the other save: neither waits for ever."""
    run = Run(world, folder / "stopped", seed=5).train(0, 1)
    if world.first:
        return run.checkpoints.emergency(1, run.parts, "SIGTERM")
    return run.checkpoints.save(1, run.parts)


def a_failing_rank(world: World, folder: Path) -> Any:
    """The second rank fails; the first knows nothing of it, and goes on."""
    run = Run(world, folder / "failing", seed=6).train(0, 1)
    path = None if world.first else run.checkpoints.emergency(1, run.parts, ValueError("no"))
    return path, run.said, run.end()


def a_full_disk(world: World, folder: Path) -> Any:
    run = Run(world, folder / "full", seed=7)

    def refuse(*_: Any) -> None:
        raise InstrumentError("the disk is full")

    before, file.write = file.write, refuse
    try:
        run.checkpoints.save(1, run.parts)
    except InstrumentError as error:
        return str(error)
    finally:
        file.write = before


SCENARIOS = (
    ddp, damaged, from_one_process, an_agreed_stop, a_failing_rank, a_full_disk,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def one(folder: Path) -> dict[str, Any]:
    run = Run(World(), folder / "one", seed=8).train(0, 2)
    run.checkpoints.save(2, run.parts)
    return run.end()


@pytest.fixture(scope="module")
def two(folder: Path, one: dict[str, Any]) -> Mapping[str, list[Any]]:
    return ranks.run(SCENARIOS, folder)


@pytest.fixture(scope="module")
def two_gpus(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Any]]:
    return ranks.run((ddp, an_agreed_stop), tmp_path_factory.mktemp("gpus"), device="cuda")


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    return bool(left == right)


def test_two_ranks_resume_bit_for_bit(two: Mapping[str, list[Any]]) -> None:
    went_on_bit_for_bit(two["ddp"])


@pytest.mark.gpu(2)
def test_two_gpus_resume_bit_for_bit(two_gpus: Mapping[str, list[Any]]) -> None:
    went_on_bit_for_bit(two_gpus["ddp"])


def test_two_ranks_go_back_to_the_checkpoint_before_a_damaged_one(two: Mapping[str, list[Any]]) -> None:
    for step, said in two["damaged"]:
        assert step == 1
        assert [line.partition(";")[2] for line in said] == [" trying the checkpoint before it, 0001-step-1.pt"]


def went_on_bit_for_bit(runs: list[Any]) -> None:
    for unbroken, resumed in runs:
        assert equal(unbroken, resumed)
    first, second = (unbroken["draws"] for unbroken, _ in runs)
    assert not torch.equal(first.cpu(), second.cpu())


def test_one_process_resumes_a_run_of_two(two: Mapping[str, list[Any]], folder: Path) -> None:
    run = Run(World(), folder / "alone", seed=9)
    resumed = load(folder / "ddp", run.parts, run.device, config=run.config)
    assert resumed.step == 3
    saved = file.read(folder / "ddp" / "0001-step-3.pt")["parts"]
    assert equal(dict(run.learner.model.state_dict()), dict(saved["model"]))
    assert equal(run.learner.optimizer.state_dict()["state"], saved["optimizer"]["state"])
    run.config = replace(run.config, data=replace(run.config.data, batch=6))
    together = two["ddp"][0][0]
    torch.testing.assert_close(dict(run.train(3, 6).end()["model"]), dict(together["model"]), rtol=1e-9, atol=1e-12)


def test_two_ranks_resume_a_run_of_one(two: Mapping[str, list[Any]], one: dict[str, Any]) -> None:
    first, second = two["from_one_process"]
    for part in ("model", "optimizer", "schedule", "scaler"):
        assert equal(first[part], one[part])
        assert equal(second[part], one[part])
    assert torch.equal(first["draws"], one["draws"])


def test_all_ranks_share_an_emergency_checkpoint(two: Mapping[str, list[Any]], folder: Path) -> None:
    assert two["an_agreed_stop"] == [folder / "stopped" / "0001-step-1-emergency.pt"] * 2
    assert file.read(folder / "stopped" / "0001-step-1-emergency.pt")["reason"] == "SIGTERM"


def test_failed_rank_saves_its_state(two: Mapping[str, list[Any]], folder: Path) -> None:
    path, said, state = two["a_failing_rank"][1]
    assert (path, said) == (folder / "failing" / "0001-step-1-emergency.pt", [])
    assert equal(dict(file.read(path)["parts"]["model"]), dict(state["model"]))


def test_write_error_reaches_all_ranks(two: Mapping[str, list[Any]]) -> None:
    assert two["a_full_disk"] == ["the disk is full"] * 2


def test_one_process_needs_a_checkpoint_folder(tmp_path: Path) -> None:
    with pytest.raises(InstrumentError, match="checkpoint-folder"):
        shared_checkpoints(CONFIG, World(), print)
    assert "random" not in Run(World(), tmp_path, seed=0).parts
