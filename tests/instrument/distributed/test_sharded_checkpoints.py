"""Sharded checkpoints of two ranks: the same run continues from them, and so does one process alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from instrument.distributed.world import World
from instrument.errors import InstrumentError
from tests.instrument import ranks
from tests.instrument.distributed import test_checkpoints


class Run(test_checkpoints.Run):
    def __init__(self, world: World, folder: Path, seed: int) -> None:
        super().__init__(world, folder, seed, sharded=True)

    def weights(self) -> dict[str, Any]:
        weights = self.learner.model.state_dict().items()
        whole = {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in weights}
        return {name: value.clone() for name, value in whole.items()}


def sharded(world: World, folder: Path) -> Any:
    first = Run(world, folder / "run", seed=1)
    for step, loss in ((1, 0.7), (2, 0.3), (3, 0.5)):
        first.train(step - 1, step).checkpoints.save(step, first.parts, loss=loss, extra={"position": [0, step]})
        saved = first.weights()
    first.train(3, 4)  # while the last checkpoint is written
    draw = torch.rand(2, device=first.device)
    unbroken = first.weights()
    first.checkpoints.close()
    second = Run(world, folder / "run", seed=2)
    resumed = second.checkpoints.start("latest", second.parts, second.device)
    assert resumed is not None
    assert (resumed.step, resumed.loss, resumed.extra) == (3, 0.5, {"position": [0, 3]})
    second.train(3, 4)
    torch.testing.assert_close(second.weights(), unbroken, rtol=0, atol=0)
    assert torch.equal(torch.rand(2, device=second.device), draw)
    assert second.learner.schedule.step_count == 4
    assert second.checkpoints.emergency(4, second.parts, ValueError("broken")) is None
    path = second.checkpoints.emergency(4, second.parts, "SIGTERM", extra={"position": [0, 4]})
    return saved, second.said, path


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("sharded")
    return folder / "run", ranks.run([sharded], folder)["sharded"]


def test_last_checkpoints_are_kept(two: tuple[Path, list[Any]]) -> None:
    folder, results = two
    kept = ["step-00000002", "step-00000003", "step-00000004"]  # an emergency checkpoint removes none
    assert sorted(path.name for path in folder.iterdir() if path.name[0] != ".") == kept
    for _saved, lines, path in results:
        assert path == folder / "step-00000004"
        assert [line.partition(":")[0] for line in lines] == ["no emergency checkpoint at step 4"]


@pytest.fixture(scope="module")
def two_gpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("sharded-gpus")
    return folder / "run", ranks.run([sharded], folder, device="cuda")["sharded"]


@pytest.mark.gpu(2)
def test_two_gpus_resume_bit_for_bit_and_one_process_continues(two_gpus: tuple[Path, list[Any]]) -> None:
    folder, ((saved, _lines, path), _) = two_gpus
    assert path == folder / "step-00000004"
    alone = Run(World(device_type="cuda"), folder, seed=3)
    assert alone.checkpoints.start(str(folder / "step-00000003"), alone.parts, alone.device) is not None
    torch.testing.assert_close(alone.weights(), saved, rtol=0, atol=0, check_device=False)


def test_one_process_continues_the_run_of_two(two: tuple[Path, list[Any]]) -> None:
    folder, ((saved, *_), _) = two
    alone = Run(World(), folder, seed=3)
    resumed = alone.checkpoints.start(str(folder / "step-00000003"), alone.parts)
    assert resumed is not None
    torch.testing.assert_close(alone.weights(), saved, rtol=0, atol=0)
    assert alone.checkpoints.start("latest", alone.parts).reason == "SIGTERM"
    path = alone.checkpoints.save(7, alone.parts)
    assert alone.checkpoints.latest() == path


@pytest.mark.parametrize("on_gpu", [True, False])
def test_rate_is_a_tensor_on_a_gpu_alone(tmp_path: Path, on_gpu: bool) -> None:
    """A run on a GPU, whose optimizer is fused and has its rate there, continues on a CPU, and the other way around."""
    first, second = Run(World(), tmp_path, seed=1).train(0, 2), Run(World(), tmp_path, seed=2)
    gpu, cpu = (first, second) if on_gpu else (second, first)
    for group in gpu.learner.optimizer.param_groups:
        group.update(lr=torch.tensor(group["lr"], dtype=torch.float64), foreach=False, fused=True)
    first.checkpoints.save(2, first.parts)
    assert second.checkpoints.start("latest", second.parts) is not None
    rates = [[group["lr"] for group in run.learner.optimizer.param_groups] for run in (gpu, cpu)]
    assert [float(rate) for rate in rates[0]] == rates[1]
    assert all(isinstance(rate, torch.Tensor) for rate in rates[0])
    assert [group["fused"] for group in cpu.learner.optimizer.param_groups] == [False, False]
    torch.testing.assert_close(first.train(2, 4).weights(), second.train(2, 4).weights())


def test_checkpoint_before_a_damaged_one_is_loaded(two: tuple[Path, list[Any]]) -> None:
    folder, _results = two
    alone = Run(World(), folder, seed=5)
    path = alone.checkpoints.save(8, alone.parts)
    for name in ("run.json", "__0_0.distcp", ".metadata", "rank-0.pt"):
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[: len(content) // 2])
        alone.said.clear()
        resumed = alone.checkpoints.start("latest", alone.parts)
        assert (resumed and resumed.step) in (4, 7), name
        assert [line.partition(" (")[0] for line in alone.said] == [f"{path} is damaged"], name
        (path / name).write_bytes(content)


def test_missing_or_best_checkpoint_is_refused(tmp_path: Path) -> None:
    alone = Run(World(), tmp_path / "new", seed=3)
    for where, problem in (
        ("latest", "contains no sharded checkpoint"),
        ("best", "of sharded checkpoints no best one is kept; use --resume latest"),
    ):
        with pytest.raises(InstrumentError, match=problem):
            alone.checkpoints.start(where, alone.parts)
