"""How long the gradients take to reduce while nothing else runs, and one rank's own work while nothing is reduced.

calibration = calibrate(learner, batch, config, world)     # before the first step; waits for the GPU
...
told = lines(share(steps, calibration, config, world))     # after the last one, on all ranks
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from instrument.config.schema import Config
from instrument.distributed.agreement import stop_together
from instrument.distributed.parts import gathered
from instrument.distributed.report import MIB, REFERENCE_MB, Calibration, RankFigures, Reductions, Together
from instrument.distributed.world import World
from instrument.distributed.wrap import inner, is_sharded
from instrument.monitor.metrics import StepFigures
from instrument.ranges import annotate
from instrument.strategies import strategy_class
from instrument.streams import Event
from instrument.trainer.learner import Batch, Learner
from instrument.trainer.recover import is_out_of_memory

REPETITIONS = 3
_WARM_UP = 2  # steps at a run's start whose times say nothing about the others: buckets are made, memory is found


def calibrate(learner: Learner, batch: Batch, config: Config, world: World) -> Calibration | None:
    """Measure one rank's forward and backward pass, and all ranks' reductions, a few times each.

    All ranks have to call it. It waits for the GPU, changes no weight, no gradient and no random number.

    Args:
        learner: its model under DDP.
        batch: one micro-batch, on the device.
        config: the run's, for its bucket size.
        world: the ranks.

    Returns:
        None where there is one rank, where the model is sharded, and where the memory did not suffice.
    """
    if world.size == 1 or is_sharded(learner.model):
        return None
    with annotate("calibrate"):
        # DDP would miss a reduction that its hooks were promised, so the model inside it is run.
        bare = Learner(inner(learner.model), learner.training, 1, learner.device)
        try:
            passes = _passes(bare, batch)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            passes = None
        if stop_together(passes is None, world) or passes is None:
            return None
        return Calibration(*passes, _reductions(learner.parameters, config.distributed.bucket_mb, learner.device))


def share(
    steps: Sequence[StepFigures], calibration: Calibration | None, config: Config, world: World
) -> Together | None:
    """Return what all ranks measured, on every rank; all have to call it. None where one of them knows no step's time.

    Args:
        steps: this rank's, the first ones of the run among them.
        calibration: this rank's.
        config: the run's.
        world: the ranks.
    """
    steady = [one for one in steps if one.step >= steps[0].step + _WARM_UP] or steps
    figures = None
    if steady and all(one.step_ms is not None for one in steady):
        beside = strategy_class(config.training.strategy).copies_ahead
        figures = RankFigures(
            world.rank,
            step_ms=_median(one.step_ms for one in steady),
            data_load_ms=_median(one.data_load_ms for one in steady),
            copy_ms=0.0 if beside else _median(one.copy_ms for one in steady),
            optimizer_ms=_median(one.optimizer_ms for one in steady),
            calibration=calibration,
        )
    ranks = [one for one in gathered(figures, world) if one is not None]
    if len(ranks) < world.size:
        return None
    return Together(tuple(ranks), config.data.batch, config.training.accumulation, config.distributed.no_sync)


def _passes(learner: Learner, batch: Batch) -> tuple[float, float]:
    """Return the median time of forward and of backward, in ms; the first of each only warms up."""
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


def _reductions(parameters: Sequence[Tensor], bucket_mb: float, device: torch.device) -> Reductions:
    nbytes = sum(one.numel() * one.element_size() for one in parameters)
    gradients = torch.zeros(nbytes // 4, device=device)

    def timed(size_mb: float) -> float:
        pieces = torch.split(gradients, max(int(size_mb * MIB) // 4, 1))
        return _timed(lambda: _reduce(pieces), device)

    whole, bucketed = timed(nbytes / MIB + 1), timed(bucket_mb)
    return Reductions(
        nbytes, whole, bucket_mb, bucketed, bucketed if bucket_mb == REFERENCE_MB else timed(REFERENCE_MB)
    )


def _reduce(pieces: Sequence[Tensor]) -> None:
    """Reduce as DDP does: all at once under way, then waited for."""
    for work in [dist.all_reduce(piece, async_op=True) for piece in pieces]:
        work.wait()


def _timed(call: Callable[[], None], device: torch.device) -> float:
    """Return the median time of a call that all ranks make together, in ms; the first only warms up."""
    times = []
    for _ in range(REPETITIONS + 1):
        dist.all_reduce(torch.zeros(1))  # on the hosts: ranks begin together
        begun = Event(device, timing=True).record()
        call()
        ended = Event(device, timing=True).record()
        ended.synchronize()
        times.append(ended.milliseconds_since(begun))
    return median(times[1:])


def _median(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return median(known) if known else 0.0
