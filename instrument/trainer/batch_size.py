"""`--batch auto`: the largest batch whose training step fits into the memory of the GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from instrument.config.sections import AUTO_BATCH
from instrument.devices import free_memory
from instrument.distributed.world import World, min_over_ranks
from instrument.errors import ConfigError, LogFunction
from instrument.trainer.recover import is_out_of_memory
from instrument.trees import map_tensors, nbytes
from instrument.workload import Workload

USED_SHARE = 0.9  # share of the GPU's memory; the rest is for fragments and libraries
FINEST = 8  # the result is within 1/8 of the largest size that fits
MAX_BATCH = 1 << 20


def largest_fitting(fits: Callable[[int], bool], most: int = MAX_BATCH) -> int:
    """Return a size that fits and is at most 1/8 below the largest such size; 0 if 1 does not fit.

    Args:
        fits: whether a size fits; called with rising sizes until one does not, and then between the last two.
        most: the largest size to try.
    """
    good, bad = 0, most + 1
    size = 1
    while size < bad and fits(size):
        good, size = size, 2 * size
    bad = min(bad, size)
    while bad - good > max(1, good // FINEST):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def with_batch_size(
    workload: Workload, device: torch.device, world: World, log: LogFunction, *, pinned: bool
) -> Workload:
    """Return the workload with the largest batch that fits, if its batch size is "auto"; the workload itself otherwise.

    Args:
        workload: what the run trains.
        device: the GPU.
        world: the ranks, which get the same size.
        log: gets the size that fits.
        pinned: whether batches are in pinned memory, whose budget they must fit into.

    Raises:
        ConfigError: the run has no GPU or is sharded, or one sample does not fit.
    """
    config = workload.config
    if config.data.batch != AUTO_BATCH:
        return workload
    if device.type != "cuda":
        raise ConfigError("--batch auto needs a GPU, whose memory it fills; use --batch N")
    if config.distributed.shard:
        raise ConfigError("--batch auto measures one GPU, and --shard spreads the model over several; use --batch N")

    def fits(size: int) -> bool:
        return _step_fits(_sized(workload, size), device, pinned=pinned)

    size = min_over_ranks(largest_fitting(fits), world)
    if size == 0:
        raise ConfigError("--batch auto: a step with one sample does not fit; use --checkpointing or a smaller model")
    log(f"batch {size}: the largest that fits into {USED_SHARE:.0%} of the GPU's memory")
    return _sized(workload, size)


def _sized(workload: Workload, size: int) -> Workload:
    config = workload.config
    return workload.with_config(replace(config, data=replace(config.data, batch=size)))


def _step_fits(workload: Workload, device: torch.device, *, pinned: bool) -> bool:
    """Run a training step; return whether it and the batches copied ahead fit."""
    config = workload.config
    # A kept batch has to fit into the budget of pinned memory; one is enough for the step.
    data = replace(config.data.on_demand(), distinct_batches=min(1, config.data.distinct_batches))
    _, total = torch.cuda.mem_get_info(device)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        batch = next(iter(workload.build_loader(replace(config, data=data), pinned=pinned)))
        model = workload.build_model(device)
        learner = workload.learner(model, config.training, 1, device)
        on_device = map_tensors(batch, lambda tensor: tensor.to(device))
        learner.backward(learner.forward(on_device))
        learner.update()
        torch.cuda.synchronize(device)
        ahead = (config.data.depth + 1) * nbytes(batch)
        return torch.cuda.max_memory_reserved(device) + ahead <= USED_SHARE * total
    except ConfigError:  # the data has fewer samples, or the batch exceeds the budget of pinned memory
        return False
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        learner = on_device = None  # type: ignore[assignment]
        free_memory()
