"""The report names the knob: on hand-made figures whose cause is known, and from two real processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from instrument.config.schema import Config, Data, Distributed, Model, Training  # noqa: E402
from instrument.data.datasets import build_loader  # noqa: E402
from instrument.distributed.calibrate import calibrate, gather_scaling  # noqa: E402
from instrument.distributed.report import (  # noqa: E402
    Calibration,
    RankFigures,
    Reductions,
    Scaling,
    report_lines,
    slowdown_causes,
)
from instrument.distributed.world import World  # noqa: E402
from instrument.distributed.wrap import gradient_reduction, wrap  # noqa: E402
from instrument.models import build  # noqa: E402
from instrument.monitor.metrics import StepFigures  # noqa: E402
from instrument.trainer.learner import Learner  # noqa: E402
from tests.instrument import ranks  # noqa: E402

CPU = torch.device("cpu")
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
NBYTES = 232_000_000
GOOD = Reductions(NBYTES, unsplit_ms=5.0, bucket_mb=25, bucketed_ms=5.0, reference_ms=5.0)


def together(step: float, reductions: Reductions = GOOD, *, backward: float = 8.0, **run: Any) -> Scaling:
    """Two equal ranks, whose own work takes 4 ms forward, `backward`, and 1 ms in the optimizer."""
    calibration = Calibration(4.0, backward, reductions)
    figures = [RankFigures(rank, step, 0.0, 0.0, 1.0, calibration) for rank in range(2)]
    return Scaling(tuple(figures), batch=32, **run)


def test_full_speedup_has_no_cause() -> None:
    assert report_lines(together(13.1)) == [
        "2 GPUs are 1.98 times as fast as one GPU without waits: a step of 2 x 32 samples takes 13.1 ms, "
        "one GPU computes 32 samples in 13.0 ms",
        "scaling is close to ideal: 1.98 of 2",
    ]
    assert slowdown_causes(together(13.1)) == ()


def test_batch_too_small_to_hide_its_reduction() -> None:
    slow = replace(GOOD, unsplit_ms=12.4, bucketed_ms=12.4, reference_ms=12.4)
    (one,) = slowdown_causes(together(19.0, slow, backward=8.1))
    assert one.text == (
        "batch per GPU is too small: 8.1 ms of backward cannot hide 12.4 ms of all-reduce (232 MB at 18.7 GB/s); "
        "use --batch 64"
    )
    assert one.cost_ms == pytest.approx(12.4 - 8.1 * 8 / 9)  # 232 MB are nine buckets of 25 MiB


def test_causes_cost_at_most_the_loss() -> None:
    slow = replace(GOOD, unsplit_ms=50, bucketed_ms=50, reference_ms=50)
    run = together(15.0, slow)
    assert [one.cost_ms for one in slowdown_causes(run)] == [pytest.approx(2.0)]
    assert report_lines(run)[1].endswith("use --batch 256 (up to 2.0 ms per step)")


def test_two_gpus_slower_than_one() -> None:
    (first, *_) = report_lines(together(40.0))
    assert first.startswith("2 GPUs are slower (0.65 times as fast) than one GPU without waits")


def test_buckets_too_small() -> None:
    small = Reductions(NBYTES, unsplit_ms=5.0, bucket_mb=1, bucketed_ms=77.3, reference_ms=5.8)
    (one,) = slowdown_causes(together(85.0, small))
    assert one.text == (
        "bucket_mb is too small: buckets of 1 MB reduce at 3.0 GB/s, buckets of 25 MB at 40.0 GB/s; use --bucket-mb 25"
    )
    assert one.cost_ms == pytest.approx(77.3 - 8 * 221 / 222 - 5.8 / 9)


def test_small_hidden_buckets_are_not_a_cause() -> None:
    small = Reductions(NBYTES, unsplit_ms=1.0, bucket_mb=1, bucketed_ms=4.0, reference_ms=1.0)
    assert slowdown_causes(together(20.0, small)) == ()
    assert report_lines(together(20.0, small))[1:] == ["7.0 ms per step have another cause; record a capture to see it"]


def test_single_bucket() -> None:
    large = Reductions(NBYTES, unsplit_ms=6.0, bucket_mb=1000, bucketed_ms=6.0, reference_ms=6.1)
    (one,) = slowdown_causes(together(19.0, large))
    assert one.text == (
        "bucket_mb is too large: one bucket of 1000 MB holds all gradients (232 MB), so nothing overlaps; "
        "use --bucket-mb 25"
    )
    assert one.cost_ms == pytest.approx(6.0 - 6.0 / 9)


def test_small_single_bucket_is_split_in_four() -> None:
    few = Reductions(8 << 20, unsplit_ms=2.0, bucket_mb=25, bucketed_ms=2.0, reference_ms=2.0)
    (one,) = slowdown_causes(together(15.0, few))
    assert one.text.endswith("use --bucket-mb 2")


def test_reducing_every_micro_batch() -> None:
    slow = replace(GOOD, bucketed_ms=9.0, reference_ms=9.0)
    run = together(61.0, slow, accumulation=4, no_sync=False)
    knobs = {one.text.split(";")[1].split()[1]: one.cost_ms for one in slowdown_causes(run)}
    exposed = 9.0 - 8.0 * 8 / 9
    assert knobs == {"--ddp-sync": pytest.approx(3 * exposed), "--batch": pytest.approx(4 * exposed)}
    assert ["use --batch" in one.text for one in slowdown_causes(replace(run, no_sync=True))] == [True]


def test_straggler() -> None:
    run = together(16.0)
    late = replace(run.ranks[1], data_load_ms=2.6)
    (one,) = slowdown_causes(replace(run, ranks=(run.ranks[0], late)))
    assert one.text == (
        "the ranks wait for rank 1: its own work takes 20% longer (data loading 2.6 ms instead of 0.0 ms)"
    )
    assert one.cost_ms == pytest.approx(2.6)


def test_slower_gpu_has_no_remedy() -> None:
    run = together(17.5)
    hot = replace(run.ranks[0], calibration=Calibration(5.0, 11.0, GOOD))
    (one,) = slowdown_causes(replace(run, ranks=(hot, run.ranks[1])))
    assert one.cost_ms == pytest.approx(4.0)
    assert "rank 0: its own work takes 31% longer (backward 11.0 ms instead of 8.0 ms)" in one.text


def test_slow_data_on_all_ranks() -> None:
    run = together(20.0)
    run = replace(run, ranks=tuple(replace(one, data_load_ms=7.0) for one in run.ranks))
    assert ["--workers" in one.text for one in slowdown_causes(run)] == [True]
    assert report_lines(run)[1] == (
        "every rank waits 7.0 ms per step for data; load ahead with more --workers (up to 7.0 ms per step)"
    )


def test_copies_on_the_compute_stream_are_own_work() -> None:
    run = together(20.0)
    run = replace(run, ranks=tuple(replace(one, copy_ms=7.0) for one in run.ranks))
    assert "one GPU computes 32 samples in 20.0 ms" in report_lines(run)[0]


def test_sharded_run_reports_its_steps() -> None:
    ranks_ = (RankFigures(0, 20.0), RankFigures(1, 20.0, data_load_ms=5.0))
    told = report_lines(Scaling(ranks_, batch=8))
    assert told[0].startswith("2 GPUs, sharded: a step takes 20.0 ms")
    assert told[1].startswith("the ranks wait for rank 1")
    assert len(told) == 2


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
    calibration = calibrate(learner, next(batches), run, world)
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
    scaling = gather_scaling(steps, calibration, run, world)
    return calibration, untouched, scaling, gather_scaling([], calibration, run, world)


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
    weights = build(config().model, config().data, CPU).parameters()
    assert first.reductions.gradient_bytes == 4 * sum(one.numel() for one in weights)
    assert min(first.forward_ms, first.backward_ms, first.reductions.unsplit_ms, first.reductions.bucketed_ms) > 0
    assert (first.reductions.reference_ms == first.reductions.bucketed_ms) == (kind == "ddp_static_graph")
    assert shared == shared_too
    assert [(one.rank, one.step_ms, one.optimizer_ms) for one in shared.ranks] == [(0, 10.0, 0.5), (1, 11.0, 0.5)]
    assert [one.calibration for one in shared.ranks] == [first, second]
    assert report_lines(shared)[0].startswith("2 GPUs")
    assert nothing is None


def test_sharded_processes_share_only_step_times(two: Mapping[str, list[Any]]) -> None:
    calibration, untouched, shared, _ = two["sharded"][0]
    assert (calibration, untouched) == (None, True)
    assert [one.step_ms for one in shared.ranks] == [10.0, 11.0]


def test_one_process_is_not_calibrated() -> None:
    run = config()
    learner = Learner(build(run.model, run.data, CPU), run.training, 3, CPU)
    assert calibrate(learner, {}, run, World()) is None
