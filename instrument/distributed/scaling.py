"""The speed-up of several GPUs over one, and what limits it, from times that the ranks measure.

calibration = calibrate(learner, batch, world)     # waits for the GPU
...
lines = report_lines(gather_times(steps, calibration, config, world), config)     # on all ranks
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from instrument.config.schema import Config
from instrument.config.strategies import STRATEGIES
from instrument.distributed.parts import gather_values
from instrument.distributed.world import World, any_rank
from instrument.distributed.wrap import is_sharded, unwrap
from instrument.memory import format_bytes
from instrument.monitor.metrics import StepFigures
from instrument.ranges import annotate
from instrument.streams import Event
from instrument.trainer.learner import Batch, Learner
from instrument.trainer.recover import is_out_of_memory

MIB = 1 << 20
REPETITIONS = 3
WARM_UP_STEPS = 2  # excluded: the first steps create buckets and allocate memory
BUCKET_MB = 25  # torch's default
MIN_COST_FRACTION = 0.02  # share of a step; smaller costs are not reported
GOOD_SCALING = 0.95  # share of the ideal speed-up; above it nothing is reported


class Calibration(NamedTuple):
    """Times of one micro-batch without a reduction in ms, and the size of all gradients of a rank."""

    forward_ms: float
    backward_ms: float
    gradient_bytes: int


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Median times of a step on one rank, in ms.

    Attributes:
        step_ms: time from the start of a step to the start of the next one.
        work: time of each part of the rank's own work, which other ranks cannot delay.
        calibration: None for a sharded model, which one rank cannot run alone.
    """

    step_ms: float
    work: Mapping[str, float]
    calibration: Calibration | None = None

    @property
    def computing_ms(self) -> float:
        """Time of a step that waits neither for data nor for other ranks."""
        return sum(self.work.values()) - self.work.get("data loading", 0.0)


class Cause(NamedTuple):
    """An upper bound of the time that a step loses, and the cause with its remedy."""

    cost_ms: float
    text: str


def calibrate(learner: Learner, batch: Batch, world: World) -> Calibration | None:
    """Measure forward and backward of one rank alone, a few times each.

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
            passes = _pass_times(bare, batch)
            bare.put_buffers_back()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            passes = None
        if any_rank(passes is None, world) or passes is None:
            return None
        return Calibration(*passes, sum(weight.numel() * weight.element_size() for weight in learner.parameters))


def gather_times(
    steps: Sequence[StepFigures], calibration: Calibration | None, config: Config, world: World
) -> list[RankTimes]:
    """Return the times of all ranks, on every rank; none if a rank has no step times. All ranks must call it.

    Args:
        steps: steps of this rank, including the first ones of the run.
        calibration: calibration of this rank.
        config: the configuration of the run.
        world: the ranks.
    """
    steady = [step for step in steps if step.step >= steps[0].step + WARM_UP_STEPS] or steps
    times = None
    if steady and all(step.step_ms is not None for step in steady):
        work = {"data loading": _median(step.data_load_ms for step in steady)}
        if not STRATEGIES[config.training.strategy].copies_ahead:
            work["copy"] = _median(step.copy_ms for step in steady)
        if calibration is not None:
            work["forward"] = config.training.accumulation * calibration.forward_ms
            work["backward"] = config.training.accumulation * calibration.backward_ms
            work["optimizer"] = _median(step.optimizer_ms for step in steady)
        times = RankTimes(_median(step.step_ms for step in steady), work, calibration)
    ranks = [rank for rank in gather_values(times, world) if rank is not None]
    return ranks if len(ranks) == world.size else []


def report_lines(ranks: Sequence[RankTimes], config: Config) -> list[str]:
    """Return the report: the speed-up, then each cause of lost time with its remedy, the most expensive first."""
    if not ranks:
        return []
    size, step = len(ranks), max(rank.step_ms for rank in ranks)
    if any(rank.calibration is None for rank in ranks):
        summary = f"{size} GPUs, sharded: a step takes {step:.1f} ms; record a capture to see the communication"
        return [summary, *(cause.text for cause in slowdown_causes(ranks))]
    single = min(rank.computing_ms for rank in ranks)
    speedup, samples = size * single / step, config.data.batch * config.training.accumulation
    verdict = f"{speedup:.2f} times as fast as" if speedup > 1 else f"slower ({speedup:.2f} times as fast) than"
    report = [
        f"{size} GPUs are {verdict} one GPU without waits: a step of {size} x {samples} samples takes {step:.1f} ms, "
        f"one GPU computes {samples} samples in {single:.1f} ms"
    ]
    if speedup >= GOOD_SCALING * size:
        return [*report, f"scaling is close to ideal: {speedup:.2f} of {size}"]
    causes = slowdown_causes(ranks)
    report += [f"{cause.text} (up to {cause.cost_ms:.1f} ms per step)" for cause in causes]
    rest = step - single - sum(cause.cost_ms for cause in causes)
    if rest > MIN_COST_FRACTION * step:
        report.append(f"{rest:.1f} ms per step are communication, or have another cause; record a capture to see it")
        report += _reduction_settings(ranks[0], config)
    return report


def slowdown_causes(ranks: Sequence[RankTimes]) -> list[Cause]:
    """Return what the ranks wait for besides communication, the most expensive first.

    A cause is at most the difference between a step and the work of a single GPU, and at least 2% of a step.
    """
    lost = step = max(rank.step_ms for rank in ranks)
    if all(rank.calibration is not None for rank in ranks):
        lost = max(step - min(rank.computing_ms for rank in ranks), 0.0)
    capped = [Cause(min(cause.cost_ms, lost), cause.text) for cause in _waiting_causes(ranks)]
    return sorted((cause for cause in capped if cause.cost_ms >= MIN_COST_FRACTION * step), reverse=True)


def _reduction_settings(rank: RankTimes, config: Config) -> Iterator[str]:
    """Yield the settings that make DDP reduce more than once a step, or after the backward only."""
    settings, accumulation = config.distributed, config.training.accumulation
    if accumulation > 1 and not settings.no_sync:
        yield f"gradients are reduced {accumulation} times per step; remove --ddp-sync to reduce them once"
    nbytes = 0 if rank.calibration is None else rank.calibration.gradient_bytes
    if settings.bucket_mb > BUCKET_MB and nbytes <= settings.bucket_mb * MIB:
        yield (
            f"one bucket of {settings.bucket_mb:g} MiB holds all gradients ({format_bytes(nbytes)}), so their "
            f"reduction starts after the backward; use --bucket-mb {BUCKET_MB}"
        )


def _waiting_causes(ranks: Sequence[RankTimes]) -> Iterator[Cause]:
    """Yield data loading that all ranks wait for, and a slow rank that the others wait for."""
    data = min(rank.work["data loading"] for rank in ranks)
    if data:
        yield Cause(data, f"every rank waits {data:.1f} ms per step for data; load ahead with more --workers")
    totals = [sum(rank.work.values()) for rank in ranks]
    slowest = totals.index(max(totals))
    least, most = ranks[totals.index(min(totals))].work, ranks[slowest].work
    if (cost := max(totals) - min(totals)) > 0:
        part = max(most, key=lambda name: most[name] - least[name])
        text = (
            f"the ranks wait for rank {slowest}: its own work takes {100 * cost / max(min(totals), 1e-9):.0f}% longer "
            f"({part} {most[part]:.1f} ms instead of {least[part]:.1f} ms)"
        )
        yield Cause(cost, text)


def _pass_times(learner: Learner, batch: Batch) -> tuple[float, float]:
    """Return the median times of forward and backward in ms, without the first of each."""
    forwards, backwards = [], []
    for _ in range(REPETITIONS + 1):
        begun = Event(learner.device, timing=True).record()
        loss = learner.forward(batch)
        between = Event(learner.device, timing=True).record()
        learner.gradients(loss)
        ended = Event(learner.device, timing=True).record()
        ended.synchronize()
        forwards.append(between.milliseconds_since(begun))
        backwards.append(ended.milliseconds_since(between))
    return median(forwards[1:]), median(backwards[1:])


def _median(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return median(known) if known else 0.0
