"""The mixin that adds asynchronous batches and NVTX ranges to a Trainer, by overriding its methods."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from accelerate.data_loader import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    DataLoaderDispatcher,
    DataLoaderShard,
)
from transformers import TrainerCallback

from instrument.hf.batches import AsyncBatches, StepRanges, StockBatches
from instrument.ranges import BACKWARD, CHECKPOINT, FORWARD, OPTIMIZER, VALIDATE, phase
from instrument.streams import Stream

logger = logging.getLogger(__name__)


class _PhaseCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Opens and closes ranges at the events that only a callback receives."""

    def __init__(self, trainer: AsyncTrainerMixin) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, *_args: Any, **_kwargs: Any) -> None:
        self._trainer._steps.enter(OPTIMIZER)

    def on_optimizer_step(self, *_args: Any, **_kwargs: Any) -> None:
        self._trainer._steps.leave()

    def on_epoch_end(self, *_args: Any, **_kwargs: Any) -> None:
        self._trainer._close_batches()


class AsyncTrainerMixin:
    """A mixin for `transformers.Trainer` and its subclasses. List it first among the base classes.

        class MyTrainer(AsyncTrainerMixin, SFTTrainer): ...

    During `train`, a `PrefetchLoader` copies batches to the device on a separate stream. The range `iteration N` lasts
    from the first batch of an optimizer step to the first batch of the next one. It contains the ranges `data_load`,
    `forward`, `backward`, `optimizer` (gradient clipping and step), and at times `validate` and `checkpoint`. The range
    `h2d` is on the copying thread.

    Log entries with a loss also get `perf/step_ms`, the median host time of a step.

    If a dataset or collator draws random numbers in the main process (`dataloader_num_workers=0`), it draws them
    earlier than with the stock loader. With workers, the batches are the same.

    Args:
        *args: arguments of the Trainer.
        enable_async_dataloader: False to use the stock loader and copies; ranges stay.
        **kwargs: arguments of the Trainer.
    """

    accelerator: Any
    args: Any
    model: Any
    state: Any

    def __init__(self, *args: Any, enable_async_dataloader: bool = True, **kwargs: Any) -> None:
        self.enable_async_dataloader = enable_async_dataloader
        self._overlapping = self._training = False
        self._batches: StockBatches | None = None
        self._copies: Stream | None = None
        self._steps = StepRanges()
        super().__init__(*args, **kwargs)
        stock: Any = super()
        stock.add_callback(_PhaseCallback(self))

    def create_accelerator_and_postprocess(self) -> None:
        """Add ranges to the accelerator's backward pass and gradient clipping."""
        stock: Any = super()
        stock.create_accelerator_and_postprocess()
        _name_phases(self.accelerator, {"backward": BACKWARD, "clip_grad_norm_": OPTIMIZER})
        if getattr(self, "is_deepspeed_enabled", False):
            _leave_domains_of_deepspeed()

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as the stock Trainer does; end the thread and close all ranges afterwards."""
        stock: Any = super()
        self._training = True
        try:
            return stock.train(*args, **kwargs)
        finally:
            self._training = False
            self._close_batches()

    def get_train_dataloader(self) -> Any:
        """Return the stock loader; during `train`, if asynchronous, a loader that leaves batches on the host."""
        stock: Any = super()
        self._close_batches()
        self._overlapping = False
        if not (self._training and self.enable_async_dataloader):
            return stock.get_train_dataloader()
        obstacle = _async_obstacle(self.args.device, self.accelerator)
        with nullcontext() if obstacle else _batches_on_host(self.accelerator):
            loader = stock.get_train_dataloader()
        if isinstance(loader, DataLoaderDispatcher):
            obstacle = (
                "process 0 reads for all processes (dispatch_batches, or an IterableDataset with several processes)"
            )
        if obstacle is None and isinstance(loader, DataLoaderShard):
            loader.device = None
        self._overlapping = obstacle is None
        self._warn_about_lost_overlap(obstacle)
        return loader

    def get_batch_samples(self, epoch_iterator: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
        """Start an iteration and take its batches from the asynchronous loader."""
        stock: Any = super()
        if self._batches is None or self._batches.source is not epoch_iterator:
            self._close_batches()
            self._name_engine()
            self._steps.begin(self.state.global_step)
            self._batches = self._open_batches(epoch_iterator)
        elif not self._batches.ended:
            self._steps.begin(self.state.global_step)
        return stock.get_batch_samples(self._batches, *args, **kwargs)

    def compute_loss(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Add a range to the forward pass of training."""
        stock: Any = super()
        with phase(FORWARD) if model.training else nullcontext():
            return stock.compute_loss(model, *args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Add a range to the evaluation."""
        stock: Any = super()
        with phase(VALIDATE):
            return stock.evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        stock: Any = super()
        with phase(CHECKPOINT):
            stock._save_checkpoint(*args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the time of a step to an entry with a loss."""
        stock: Any = super()
        if "loss" in logs:
            logs.update(self._steps.figures())
        stock.log(logs, *args, **kwargs)

    def _name_engine(self) -> None:
        """Name the phases of DeepSpeed, whose engine also steps the optimizer in the accelerator's backward."""
        engine = getattr(getattr(self.accelerator, "deepspeed_engine_wrapped", None), "engine", None)
        if engine is not None and "step" not in vars(engine):
            vars(self.accelerator).pop("backward", None)
            _name_phases(engine, {"backward": BACKWARD, "step": OPTIMIZER})

    def _open_batches(self, source: Iterator[Any]) -> StockBatches:
        if not self._overlapping:
            return StockBatches(source)
        # The Trainer requests all batches of an optimizer step at once, so that many have to be ready.
        depth = max(1, self.args.gradient_accumulation_steps)
        if self._copies is None:  # one stream for all epochs, because torch caches memory per stream
            self._copies = Stream.create("copy", self.args.device)
        return AsyncBatches(source, self._copies, depth)

    def _close_batches(self) -> None:
        self._steps.close()
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _warn_about_lost_overlap(self, obstacle: str | None) -> None:
        if obstacle is not None:
            logger.warning("batches are read synchronously although enable_async_dataloader is on: %s", obstacle)
        elif self.args.device.type == "cuda" and self.args.logging_nan_inf_filter:
            logger.warning(
                "logging_nan_inf_filter=True makes the host wait for the GPU after every micro-batch: set it to False"
            )


def _leave_domains_of_deepspeed() -> None:
    """Have DeepSpeed push its ranges without a domain: up to nvtx 0.2.11 a domain has no `push_range`, and it fails."""
    with suppress(ImportError):
        import nvtx
        from deepspeed.accelerator import get_accelerator

        if not hasattr(nvtx.get_domain("DeepSpeed"), "push_range"):
            get_accelerator().supports_nvtx_domain = False


def _name_phases(owner: Any, methods: dict[str, str]) -> None:
    """Replace methods of an object by the same methods in ranges."""
    for method, name in methods.items():
        setattr(owner, method, phase(name)(getattr(owner, method)))


def _async_obstacle(device: torch.device, accelerator: Any) -> str | None:
    """Return why batches cannot be read in the background, or None if they can.

    Collective calls from two threads can run in a different order on each process, which would deadlock.
    """
    if device.type not in ("cpu", "cuda"):
        return f"device {device} is neither a CUDA GPU nor the CPU"
    if getattr(getattr(accelerator, "parallelism_config", None), "sp_enabled", False):
        return "sequence parallelism exchanges batches as they are read"
    if getattr(accelerator, "use_stateful_dataloader", False):
        return "the state of a stateful data loader would include batches read ahead"
    return None


@contextmanager
def _batches_on_host(accelerator: Any) -> Iterator[None]:
    """Make accelerate leave the batches of an IterableDataset, prepared in the block, on the host.

    Only with one process: with several, accelerate would distribute the dataset in another way.
    """
    placement = accelerator.device_placement
    if accelerator.num_processes == 1 and not accelerator.dispatch_batches:
        accelerator.device_placement = False
    try:
        yield
    finally:
        accelerator.device_placement = placement
