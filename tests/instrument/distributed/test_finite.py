"""Two ranks, of which one has a loss that is not finite: both stop, or skip, at the same step."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from instrument.checkpoint.folder import Checkpoints
from instrument.config.schema import Distributed
from instrument.distributed.world import World, select_device
from instrument.trainer import training_run as runs
from tests.instrument import ranks
from tests.instrument.checkpoint.test_folder import names
from tests.instrument.trainer.test_loop import config, poison


def trained(world: World, folder: Path, *, shard: bool = False, bad: range | set[int] | None = None, **how: Any) -> Any:
    """Run the trainer on this rank; the second rank's batches `bad` hold NaN."""
    with pytest.MonkeyPatch.context() as patch:
        if bad is not None and not world.first:
            # Each global batch holds one of each rank, the first rank's in front.
            poison(patch, {2 * batch + 1 for batch in bad})
        made = config(folder, device=world.device_type, **{"steps": 24, "schedule": "constant", **how})
        made = replace(made, distributed=Distributed(shard=shard))
        device = select_device(made, world)
        said: list[str] = []
        outcome = runs._TrainingRun(
            runs.open_workload(runs.with_device(made, device, world)), world, device, said.append
        ).run()
    return outcome.exit_code, outcome.failure, outcome.losses, said


SCENARIOS: dict[str, dict[str, Any]] = {
    "stop": {"bad": range(5, 100)},
    "event": {"bad": range(5, 100), "sync": "event"},
    "sharded": {"bad": range(5, 100), "shard": True},
    "five": {"steps": 5},
    "skip": {"bad": {3}, "on_nan": "skip", "steps": 8},
}


def scenarios(world: World, folder: Path) -> Any:
    return {name: trained(world, folder / name, **how) for name, how in SCENARIOS.items()}


def newest(folder: Path) -> dict[str, Any]:
    path = Checkpoints(folder).latest()
    assert path is not None
    contents: dict[str, Any] = torch.load(path, map_location="cpu")
    return contents


def check(device: str, folder: Path) -> None:
    ranks_told = ranks.run((scenarios,), folder, device=device)["scenarios"]
    for name in ("stop", "event", "sharded"):
        first, second = (told[name] for told in ranks_told)
        assert first[0] == second[0] == 1, name
        assert first[1] == second[1] and first[1].startswith("the loss or gradient of step 5 is not finite"), name
        for _code, _failure, losses, _said in (first, second):
            assert all(map(math.isfinite, losses[:5])) and not any(map(math.isfinite, losses[5:])), name
    five = newest(folder / "five")
    shards = sorted(path.name for path in (folder / "sharded").glob("step-*"))
    assert shards == ["step-00000004", "step-00000005"]
    run = json.loads((folder / "sharded" / shards[1] / "run.json").read_text())
    assert (run["extra"], "reason" in run) == (five["extra"], True)
    for name in ("stop", "event"):
        assert names(folder / name) == ["0001-step-4.pt", "0002-step-5-emergency.pt", "best.pt"]
        assert newest(folder / name)["extra"] == five["extra"]
    for weights, expected in zip(
        newest(folder / "stop")["parts"]["model"].values(), five["parts"]["model"].values(), strict=True
    ):
        torch.testing.assert_close(weights, expected)
    for code, failure, losses, _said in (told["skip"] for told in ranks_told):
        assert (code, failure) == (0, None)
        assert [step for step, loss in enumerate(losses) if not math.isfinite(loss)] == [3]
    assert ranks_told[0]["skip"][3][-1].startswith("non-finite loss or gradient in 1 of 8 steps (first: step 3)")


def test_all_ranks_stop_or_skip_at_the_same_step(tmp_path: Path) -> None:
    check("cpu", tmp_path)


@pytest.mark.gpu(2)
def test_all_gpus_stop_or_skip_at_the_same_step(tmp_path: Path) -> None:
    check("cuda", tmp_path)
