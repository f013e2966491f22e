"""Measures the gradient reduction while nothing else runs, and the work of one rank without reductions.

calibration = calibrate(learner, batch, config, world)     # waits for the GPU
...
lines = report_lines(gather_scaling(steps, calibration, config, world))     # after the last step, on all ranks
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from instrument.config.schema import Config
from instrument.config.strategies import STRATEGIES
from instrument.distributed.agreement import any_rank
from instrument.distributed.parts import gather_values
from instrument.distributed.report import MIB, REFERENCE_MB, Calibration, RankFigures, Reductions, Scaling
from instrument.distributed.world import World
from instrument.distributed.wrap import is_sharded, unwrap
from instrument.monitor.metrics import StepFigures
from instrument.ranges import annotate
from instrument.streams import Event
from instrument.trainer.learner import Batch, Learner
from instrument.trainer.recover import is_out_of_memory

REPETITIONS = 3
WARM_UP_STEPS = 2  # excluded: the first steps create buckets and allocate memory


def calibrate(learner: Learner, batch: Batch, config: Config, world: World) -> Calibration | None:
    """Measure forward and backward of one rank, and the gradient reduction of all ranks, a few times each.

    All ranks must call it. It waits for the GPU and changes neither weights nor gradients nor random numbers.

    Args:
        learner: its model is wrapped in DDP.
        batch: one micro-batch on the device.
        config: the configuration of the run, for its bucket size.
        world: the ranks.

    Returns:
        The times; None for a single rank, for a sharded model, or if memory ran out.
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
        return Calibration(*passes, _reduction_times(learner.parameters, config.distributed.bucket_mb, learner.device))


def gather_scaling(
    steps: Sequence[StepFigures], calibration: Calibration | None, config: Config, world: World
) -> Scaling | None:
    """Return the times of all ranks, on every rank; None if a rank has no step times. All ranks must call it.

    Args:
        steps: steps of this rank, including the first ones of the run.
        calibration: calibration of this rank.
        config: the configuration of the run.
        world: the ranks.
    """
    steady = [step for step in steps if step.step >= steps[0].step + WARM_UP_STEPS] or steps
    figures = None
    if steady and all(step.step_ms is not None for step in steady):
        overlaps = STRATEGIES[config.training.strategy].copies_ahead
        figures = RankFigures(
            world.rank,
            step_ms=_median(step.step_ms for step in steady),
            data_load_ms=_median(step.data_load_ms for step in steady),
            copy_ms=0.0 if overlaps else _median(step.copy_ms for step in steady),
            optimizer_ms=_median(step.optimizer_ms for step in steady),
            calibration=calibration,
        )
    ranks = [rank for rank in gather_values(figures, world) if rank is not None]
    if len(ranks) < world.size:
        return None
    return Scaling(tuple(ranks), config.data.batch, config.training.accumulation, config.distributed.no_sync)


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


def _reduction_times(parameters: Sequence[Tensor], bucket_mb: float, device: torch.device) -> Reductions:
    nbytes = sum(weight.numel() * weight.element_size() for weight in parameters)
    gradients = torch.zeros(nbytes // 4, device=device)

    def reduction_ms(size_mb: float) -> float:
        pieces = torch.split(gradients, max(int(size_mb * MIB) // 4, 1))
        return _collective_ms(lambda: _reduce(pieces), device)

    unsplit, bucketed = reduction_ms(nbytes / MIB + 1), reduction_ms(bucket_mb)
    return Reductions(
        nbytes, unsplit, bucket_mb, bucketed, bucketed if bucket_mb == REFERENCE_MB else reduction_ms(REFERENCE_MB)
    )


def _reduce(pieces: Sequence[Tensor]) -> None:
    """Start all reductions, then wait for them, as DDP does."""
    for work in [dist.all_reduce(piece, async_op=True) for piece in pieces]:
        work.wait()


def _collective_ms(call: Callable[[], None], device: torch.device) -> float:
    """Return the median time in ms of a call that all ranks make, without the first one."""
    times = []
    for _ in range(REPETITIONS + 1):
        dist.all_reduce(torch.zeros(1))  # on the hosts, so that all ranks start together
        begun = Event(device, timing=True).record()
        call()
        ended = Event(device, timing=True).record()
        ended.synchronize()
        times.append(ended.milliseconds_since(begun))
    return median(times[1:])


def _median(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return median(known) if known else 0.0
