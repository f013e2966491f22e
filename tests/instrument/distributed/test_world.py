"""Process groups, devices and agreement of ranks, in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from instrument.config.schema import Config, Distributed, Training
from instrument.distributed.world import StopVote, World, any_rank, mean_over_ranks, process_group, select_device
from instrument.distributed.wrap import wrap
from instrument.errors import ConfigError
from tests.instrument import ranks


def who(world: World, _folder: Path) -> Any:
    return world, world.first, dist.get_backend(), dist.get_world_size()


def votes(world: World, _folder: Path) -> Any:
    """Return the step after which each rank stops if the second rank receives the request at step 3."""
    stop = StopVote(world, every=4)
    return next(step for step in range(30) if stop(world.rank == 1 and step == 3))


def unasked(world: World, _folder: Path) -> Any:
    stop = StopVote(world, every=2)
    return [stop(False) for _ in range(7)]


def at_once(world: World, _folder: Path) -> Any:
    return any_rank(world.rank == 1, world), any_rank(False, world)


def means(world: World, _folder: Path) -> Any:
    figures = {"loss": float(world.rank), "power": 300.0 if world.first else None, "nothing": None}
    return mean_over_ranks(figures if world.first else dict(reversed(figures.items())), world)


def current(_world: World, _folder: Path) -> Any:
    return torch.cuda.current_device()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Any]]:
    return ranks.run((who, votes, unasked, at_once, means), tmp_path_factory.mktemp("two"))


def test_each_process_has_its_rank(two: Mapping[str, list[Any]]) -> None:
    assert two["who"] == [(World(0, 0, 2, "cpu"), True, "gloo", 2), (World(1, 1, 2, "cpu"), False, "gloo", 2)]


def test_all_ranks_stop_after_the_same_step(two: Mapping[str, list[Any]]) -> None:
    # asked at 3, after the vote at 0: voted at 4, read at 8
    assert two["votes"] == [3, 3]
    assert two["unasked"] == [[False] * 7] * 2
    assert two["at_once"] == [(True, False)] * 2


def test_figures_average_over_measuring_ranks(two: Mapping[str, list[Any]]) -> None:
    assert two["means"] == [{"loss": 0.5, "nothing": None, "power": 300.0}] * 2


@pytest.mark.gpu(2)
def test_two_gpus_vote_and_average(tmp_path: Path) -> None:
    two = ranks.run((who, votes, unasked, at_once, means, current), tmp_path, device="cuda")
    assert [world for world, *_ in two["who"]] == [World(0, 0, 2, "cuda"), World(1, 1, 2, "cuda")]
    assert (two["votes"], two["at_once"], two["current"]) == ([3, 3], [(True, False)] * 2, [0, 1])
    assert two["means"] == [{"loss": 0.5, "nothing": None, "power": 300.0}] * 2


def test_one_process_joins_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")  # some machines set it without torchrun
    with process_group("cpu") as world:
        assert world == World()
        assert not dist.is_initialized()
    stop = StopVote(world)
    assert [stop(False), stop(True), stop(False)] == [False, True, True]
    assert (any_rank(True, world), any_rank(False, world)) == (True, False)
    assert mean_over_ranks({"loss": 1.0, "power": None}, world) == {"loss": 1.0, "power": None}


def config(device: str) -> Config:
    return replace(Config(), training=Training(device=device))


@pytest.mark.parametrize(
    ("setting", "gpus", "world", "expected"),
    [
        ("auto", 0, World(), "cpu"),
        ("auto", 2, World(), "cuda:0"),
        ("auto", 2, World(1, 1, 2, "cuda"), "cuda:1"),
        ("auto", 0, World(1, 1, 2, "cpu"), "cpu"),
        ("cpu", 2, World(1, 1, 2, "cpu"), "cpu"),
        ("cuda", 2, World(3, 1, 4, "cuda"), "cuda:1"),
        ("cuda:1", 2, World(), "cuda:1"),
    ],
)  # fmt: skip
def test_device_of_each_rank(
    monkeypatch: pytest.MonkeyPatch, setting: str, gpus: int, world: World, expected: str
) -> None:
    pretend(monkeypatch, gpus)
    assert select_device(config(setting), world) == torch.device(expected)


@pytest.mark.parametrize(
    ("setting", "gpus", "world", "reason"),
    [
        ("cuda", 0, World(), "device cuda: torch finds no GPU"),
        ("cuda:0", 0, World(), "device cuda:0: torch finds no GPU"),
        ("cuda:2", 2, World(), "device cuda:2: torch finds 2 GPUs"),
        ("cuda:0", 2, World(0, 0, 2, "cuda"), "device cuda:0: torchrun assigns a GPU to each process"),
        ("auto", 1, World(1, 1, 2, "cuda"), "process 1 has no GPU: torch finds 1; use --nproc-per-node 1"),
    ],
)  # fmt: skip
def test_impossible_device_is_one_line(
    monkeypatch: pytest.MonkeyPatch, setting: str, gpus: int, world: World, reason: str
) -> None:
    pretend(monkeypatch, gpus)
    with pytest.raises(ConfigError, match=reason) as raised:
        select_device(config(setting), world)
    assert "\n" not in str(raised.value)


def pretend(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


def test_sharding_needs_several_processes() -> None:
    with pytest.raises(ConfigError, match="needs several processes"):
        wrap(torch.nn.Linear(2, 2), Distributed(shard=True), World(), torch.device("cpu"))


def test_sharding_needs_a_recent_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed.fsdp

    monkeypatch.delattr(torch.distributed.fsdp, "fully_shard")
    with pytest.raises(ConfigError, match=r"torch 2\.6 or later"):
        wrap(torch.nn.Linear(2, 2), Distributed(shard=True), World(size=2), torch.device("cpu"))


def test_torchrun_settings_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "two")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE: .*'two'"), process_group("cpu"):
        pass


PROGRAM = """
import os, sys
import torch.distributed as dist
from instrument.distributed.world import process_group
from instrument.errors import InstrumentError
try:
    with process_group("cpu") as world:
        os.write(1, f"rank {world.rank} of {world.size}\\n".encode())  # whole lines, whoever else writes
        dist.barrier()
        if "fail" in sys.argv and world.rank == 1:
            raise InstrumentError("no")
        if "fail" in sys.argv:
            dist.barrier()
    assert not dist.is_initialized()
except (InstrumentError, RuntimeError) as error:
    assert not dist.is_initialized()
    os.write(1, f"{type(error).__name__} ended it\\n".encode())
    sys.exit(2)
"""


@pytest.mark.parametrize("argument", ["work", "fail"])
def test_run_under_torchrun(tmp_path: Path, argument: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*command, program, argument],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert {"rank 0 of 2", "rank 1 of 2"} <= set(ended.stdout.splitlines()), ended.stderr
    assert ended.returncode == (0 if argument == "work" else 1), ended.stderr
    assert ("InstrumentError ended it" in ended.stdout) == (argument == "fail")
