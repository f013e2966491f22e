"""The report names the knob: on hand-made figures whose cause is known, and from two real processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from instrument.config.schema import Config, Data, Distributed, Model, Training  # noqa: E402
from instrument.distributed.scaling import (  # noqa: E402
    RankTimes,
    calibrate,
    gather_times,
    report_lines,
)
from instrument.distributed.world import World  # noqa: E402
from instrument.distributed.wrap import gradient_reduction, wrap  # noqa: E402
from instrument.monitor.metrics import StepFigures  # noqa: E402
from instrument.trainer.learner import Learner  # noqa: E402
from tests.instrument import ranks  # noqa: E402
from tests.instrument.loaders import build_loader  # noqa: E402
from tests.instrument.models.tiny import build  # noqa: E402

CPU = torch.device("cpu")
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
CONFIG = Config(data=Data(batch=32))


def together(step: float, data: float = 0.0, work: float = 13.0) -> list[RankTimes]:
    """Two equal ranks."""
    return 2 * [RankTimes(step, data, work)]


def test_full_speedup_has_no_cause() -> None:
    assert report_lines(together(13.1), CONFIG) == [
        "2 GPUs are 1.98 times as fast as one GPU without waits: a step of 2 x 32 samples takes 13.1 ms, "
        "one GPU computes 32 samples in 13.0 ms",
        "scaling is close to ideal: 1.98 of 2",
    ]


def test_two_gpus_slower_than_one() -> None:
    (first, *rest) = report_lines(together(40.0), CONFIG)
    assert first.startswith("2 GPUs are slower (0.65 times as fast) than one GPU without waits")
    assert rest == ["27.0 ms per step are communication, or have another cause; a capture shows it"]


def test_straggler() -> None:
    first, second = together(16.0)
    assert report_lines([first, second._replace(data_ms=2.6)], CONFIG)[1] == (
        "the ranks wait for rank 1: its own work takes 15.6 ms (2.6 ms of it for data), that of the fastest rank "
        "13.0 ms"
    )


def test_slow_data_on_all_ranks() -> None:
    assert report_lines(together(20.0, data=7.0), CONFIG)[1:] == [
        "every rank waits 7.0 ms per step for data; load ahead with more --workers"
    ]


def test_sharded_run_reports_its_steps() -> None:
    lines = report_lines([RankTimes(20.0, wait) for wait in (0.0, 5.0)], CONFIG)
    assert lines[0].startswith("2 GPUs, sharded: a step takes 20.0 ms")
    assert lines[1].startswith("the ranks wait for rank 1")
    assert len(lines) == 2


def config(**distributed: Any) -> Config:
    return Config(
        training=Training(precision="fp32", device="cpu", steps=3),
        model=Model(layers=2, width=16, heads=2, vocabulary=32, features=8),
        data=Data(batch=3, sequence=6, samples=200),
        distributed=Distributed(**distributed),
    )


def _measured(world: World, **distributed: Any) -> Any:
    """Calibrate and take a step; return the measurement and whether nothing else changed."""
    run = config(**distributed)
    device = torch.device(world.device_type, world.local_rank) if world.device_type == "cuda" else CPU
    torch.manual_seed(0)
    model = wrap(build(run.model, run.data, device), run.distributed, world, device)
    learner = Learner(model, run.training, 3, device)
    host = iter(build_loader(run, rank=world.rank, world=world.size))
    batches = ({name: value.to(device) for name, value in batch.items()} for batch in host)
    before = [one.detach().clone() for one in learner.parameters], torch.get_rng_state()
    calibration = calibrate(learner, next(batches), world)
    same = all(torch.equal(old, new) for old, new in zip(before[0], learner.parameters, strict=True))
    clean = all(one.grad is None or not one.grad.any() for one in learner.parameters)
    untouched = same and clean and torch.equal(before[1], torch.get_rng_state())
    for last in (False, True, True):
        with gradient_reduction(learner.model, last):
            learner.backward(learner.forward(next(batches)))
    learner.update()
    steps = [
        StepFigures(step, optimizer_ms=0.5, step_ms=1000.0 if step < 2 else 10.0 + world.rank) for step in range(5)
    ]
    times = gather_times(steps, calibration, run, world)
    return calibration, untouched, times, gather_times([], calibration, run, world)


def ddp(world: World, _folder: Path) -> Any:
    return _measured(world, bucket_mb=0.01)


def ddp_static_graph(world: World, _folder: Path) -> Any:
    return _measured(world, static_graph=True)


def sharded(world: World, _folder: Path) -> Any:
    return _measured(world, shard=True)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Any]]:
    return ranks.run((ddp, ddp_static_graph, sharded), tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def two_gpus(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Any]]:
    return ranks.run((ddp, ddp_static_graph, sharded), tmp_path_factory.mktemp("gpus"), device="cuda")


@pytest.mark.parametrize("kind", ["ddp", "ddp_static_graph"])
def test_measurement_changes_no_result_of_two_processes(two: Mapping[str, list[Any]], kind: str) -> None:
    measured_and_changed_nothing(two, kind)


@pytest.mark.gpu
@TWO_GPUS
@pytest.mark.parametrize("kind", ["ddp", "ddp_static_graph"])
def test_measurement_changes_no_result_of_two_gpus(two_gpus: Mapping[str, list[Any]], kind: str) -> None:
    measured_and_changed_nothing(two_gpus, kind)


def measured_and_changed_nothing(two: Mapping[str, list[Any]], kind: str) -> None:
    (first, untouched, shared, nothing), (second, also, shared_too, _) = two[kind]
    assert untouched and also
    assert min(first, second) > 0
    assert shared == shared_too
    assert [(rank.step_ms, rank.work_ms) for rank in shared] == [(10.0, 0.5 + first), (11.0, 0.5 + second)]
    assert report_lines(shared, config())[0].startswith("2 GPUs")
    assert nothing == report_lines(nothing, config()) == []


def test_sharded_processes_share_only_step_times(two: Mapping[str, list[Any]]) -> None:
    calibration, untouched, shared, _ = two["sharded"][0]
    assert (calibration, untouched) == (None, True)
    assert [one.step_ms for one in shared] == [10.0, 11.0]


def test_one_process_is_not_calibrated() -> None:
    run = config()
    learner = Learner(build(run.model, run.data, CPU), run.training, 3, CPU)
    assert calibrate(learner, {}, World()) is None
