"""Pipeline parallelism by torch.distributed.pipelining, with a range for each stage and micro-batch.

    rank 0   forward 0 | forward 1 | backward 0 | forward 2 | backward 1 | ...
    rank 1               forward 0 | backward 0 | forward 1 | backward 1 | ...

A step of 1F1B with P stages and M micro-batches leaves each GPU idle for (P - 1) / (M + P - 1) of the time, if all
stages take equally long: the bubbles. `traceview analyze` measures them; see docs/trainer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from instrument.distributed.world import World
from instrument.errors import ConfigError
from instrument.ranges import annotate

CATEGORY = "stage"


def stage_blocks(blocks: Sequence[nn.Module], world: World) -> nn.Sequential:
    """Return this rank's share of the blocks of a model, in order. The first ranks have one block more, if any.

    Raises:
        ConfigError: there are more ranks than blocks.
    """
    if world.size > len(blocks):
        raise ConfigError(f"{len(blocks)} blocks cannot be shared by {world.size} ranks; use fewer processes")
    each, more = divmod(len(blocks), world.size)
    first = world.rank * each + min(world.rank, more)
    return nn.Sequential(*blocks[first : first + each + (world.rank < more)])


def pipeline_schedule(
    stage: nn.Module,
    world: World,
    device: torch.device,
    micro_batches: int,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Schedule1F1B:
    """Return the 1F1B schedule of this rank's stage. Every forward and backward is a range "stage 1 forward 3".

        schedule = pipeline_schedule(stage, world, device, 8, nn.functional.cross_entropy)
        schedule.step(inputs)                          # on the first rank
        schedule.step(target=targets, losses=losses)   # on the last one; schedule.step() on the others

    Args:
        stage: this rank's part of the model: a tensor (samples, ...) to a tensor (samples, ...).
        world: the ranks, one stage each.
        device: device of the stage.
        micro_batches: number of parts of a batch; it must divide the batch.
        loss: of the last stage's output and the targets of a micro-batch.

    Raises:
        ConfigError: there is one process alone.
    """
    if world.size == 1:
        raise ConfigError("a pipeline needs several processes; start with torchrun --nproc-per-node 2 or more")
    made = PipelineStage(stage, world.rank, world.size, device)
    _annotate(made, "forward_one_chunk", f"stage {world.rank} forward")
    _annotate(made, "backward_one_chunk", f"stage {world.rank} backward")
    return Schedule1F1B(made, micro_batches, loss_fn=loss)


def _annotate(stage: PipelineStage, method: str, name: str) -> None:
    """Put a range around a method of the stage whose first argument is the number of the micro-batch."""
    original = getattr(stage, method)

    def call(micro_batch: int, *args: Any, **kwargs: Any) -> Any:
        with annotate(f"{name} {micro_batch}", category=CATEGORY):
            return original(micro_batch, *args, **kwargs)

    setattr(stage, method, call)
