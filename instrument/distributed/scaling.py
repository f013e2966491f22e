"""The speed-up of several GPUs over one, and what the ranks wait for, from times that they measure.

compute_ms = calibrate(learner, batch, world)     # waits for the GPU
...
lines = report_lines(gather_times(steps, compute_ms, config, world), config)     # on all ranks
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from instrument.config.schema import Config
from instrument.config.strategies import STRATEGIES
from instrument.distributed.world import World, any_rank, gather_values
from instrument.distributed.wrap import is_sharded, unwrap
from instrument.monitor.metrics import StepFigures
from instrument.ranges import annotate
from instrument.streams import Event
from instrument.trainer.learner import Batch, Learner
from instrument.trainer.recover import is_out_of_memory

REPETITIONS = 3
WARM_UP_STEPS = 2  # excluded: the first steps create buckets and allocate memory
MIN_COST_FRACTION = 0.02  # share of a step; smaller costs are not reported
GOOD_SCALING = 0.95  # share of the ideal speed-up; above it nothing is reported


class RankTimes(NamedTuple):
    """Median times of a step on one rank, in ms.

    Attributes:
        step_ms: time from the start of a step to the start of the next one.
        data_ms: time the host waits for data.
        work_ms: time of copies, forward, backward and optimizer without another rank; None for a sharded model.
    """

    step_ms: float
    data_ms: float
    work_ms: float | None = None


def calibrate(learner: Learner, batch: Batch, world: World) -> float | None:
    """Return the time of forward and backward of one rank alone in ms, the median of a few.

    All ranks must call it. It waits for the GPU and changes neither weights nor gradients nor random numbers. Returns
    None for a single rank, for a sharded model, or if memory ran out.

    Args:
        learner: its model is wrapped in DDP.
        batch: one micro-batch on the device.
        world: the ranks.
    """
    if world.size == 1 or is_sharded(learner.model):
        return None
    with annotate("calibrate"):
        # DDP would wait for reductions that do not happen, so run the model inside it.
        bare = Learner(unwrap(learner.model), learner.training, 1, learner.device, learner.compute_loss)
        try:
            compute_ms = median([_pass_ms(bare, batch) for _ in range(REPETITIONS + 1)][1:])
            bare.put_buffers_back()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            compute_ms = None
        return None if any_rank(compute_ms is None, world) else compute_ms


def gather_times(
    steps: Sequence[StepFigures], compute_ms: float | None, config: Config, world: World
) -> list[RankTimes]:
    """Return the times of all ranks, on every rank; none if a rank has no step times. All ranks must call it.

    Args:
        steps: steps of this rank, including the first ones of the run.
        compute_ms: the result of `calibrate`.
        config: the configuration of the run.
        world: the ranks.
    """
    steady = [step for step in steps if step.step >= steps[0].step + WARM_UP_STEPS] or steps
    times = None
    if steady and all(step.step_ms is not None for step in steady):
        work = None
        if compute_ms is not None:
            work = config.training.accumulation * compute_ms + _median(step.optimizer_ms for step in steady)
            if not STRATEGIES[config.training.strategy].copies_ahead:
                work += _median(step.copy_ms for step in steady)
        data = _median(step.data_load_ms for step in steady)
        times = RankTimes(_median(step.step_ms for step in steady), data, work)
    ranks = [rank for rank in gather_values(times, world) if rank is not None]
    return ranks if len(ranks) == world.size else []


def report_lines(ranks: Sequence[RankTimes], config: Config) -> list[str]:
    """Return the speed-up, and what the ranks wait for."""
    if not ranks:
        return []
    size, step = len(ranks), max(rank.step_ms for rank in ranks)
    work = [rank.work_ms for rank in ranks if rank.work_ms is not None]
    if len(work) < size:
        summary = f"{size} GPUs, sharded: a step takes {step:.1f} ms; record a capture to see the communication"
        return [summary, *(text for _cost, text in _waits(ranks))]
    single, samples = min(work), config.data.batch * config.training.accumulation
    speedup = size * single / step
    verdict = f"{speedup:.2f} times as fast as" if speedup > 1 else f"slower ({speedup:.2f} times as fast) than"
    summary = (
        f"{size} GPUs are {verdict} one GPU without waits: a step of {size} x {samples} samples takes {step:.1f} ms, "
        f"one GPU computes {samples} samples in {single:.1f} ms"
    )
    if speedup >= GOOD_SCALING * size:
        return [summary, f"scaling is close to ideal: {speedup:.2f} of {size}"]
    waits = list(_waits(ranks))
    rest = step - single - sum(cost for cost, _text in waits)
    if rest > MIN_COST_FRACTION * step:
        waits.append((rest, f"{rest:.1f} ms per step are communication, or have another cause; a capture shows it"))
    return [summary, *(text for _cost, text in waits)]


def _waits(ranks: Sequence[RankTimes]) -> Iterator[tuple[float, str]]:
    """Yield the cost and the text of data that all ranks wait for, and of a slow rank."""
    least = MIN_COST_FRACTION * max(rank.step_ms for rank in ranks)
    data = min(rank.data_ms for rank in ranks)
    if data >= least:
        yield data, f"every rank waits {data:.1f} ms per step for data; load ahead with more --workers"
    own = [rank.data_ms + (rank.work_ms or 0.0) for rank in ranks]
    slowest, cost = own.index(max(own)), max(own) - min(own)
    if cost >= least:
        waits = f"{ranks[slowest].data_ms:.1f} ms of it for data"
        yield (
            cost,
            f"the ranks wait for rank {slowest}: its own work takes {max(own):.1f} ms ({waits}), that of the fastest "
            f"rank {min(own):.1f} ms",
        )


def _pass_ms(learner: Learner, batch: Batch) -> float:
    begun, ended = (Event(learner.device, timing=True) for _ in range(2))
    begun.record()
    learner.gradients(learner.forward(batch))
    ended.record().synchronize()
    return ended.milliseconds_since(begun)


def _median(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return median(known) if known else 0.0
