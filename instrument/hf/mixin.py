"""The mixin that lets a Trainer copy batches while the GPU computes, by overriding its methods."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain, islice
from typing import Any

import torch
from accelerate.data_loader import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    DataLoaderDispatcher,
    DataLoaderShard,
)
from transformers import TrainerCallback

from instrument.prefetch import PrefetchLoader
from instrument.streams import Stream

logger = logging.getLogger(__name__)


class AsyncBatches(Iterator[Any]):
    """The batches of an epoch, read and copied to the device while earlier ones are trained on.

    Close it before the source starts another epoch: its thread reads ahead and would change the source's state.

    Args:
        source: host batches. The first one is read in the constructor, the others on the loader's thread.
        stream: the copy stream; it also gives the device.
        depth: how many batches can be ready.
    """

    def __init__(self, source: Iterator[Any], stream: Stream, depth: int) -> None:
        self.source = source
        # At its first batch the source forks workers, draws a seed and communicates with other processes. That must
        # happen on this thread, which would wait for the first batch anyway.
        first = list(islice(source, 1))
        self._loader = PrefetchLoader(chain(first, source), stream.device, depth=depth, stream=stream)
        self._batches = iter(self._loader)

    def __next__(self) -> Any:
        return next(self._batches)

    def close(self) -> None:
        """Stop the loader's thread and wait for its end; then end the source, and with it its worker processes."""
        self._loader.close()
        end = getattr(self.source, "close", None)
        if callable(end):
            with suppress(ValueError):  # the thread was abandoned while it reads
                end()


class _EpochEnd(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Closes the batches of an epoch at the event that only a callback receives."""

    def __init__(self, trainer: AsyncTrainerMixin) -> None:
        self._trainer = trainer

    def on_epoch_end(self, *_args: Any, **_kwargs: Any) -> None:
        self._trainer._close_batches()


class AsyncTrainerMixin:
    """A mixin for `transformers.Trainer` and its subclasses. List it first among the base classes.

        class MyTrainer(AsyncTrainerMixin, SFTTrainer): ...

    During `train`, a `PrefetchLoader` copies batches to the device on a separate stream, in ranges `h2d` of the
    copying thread. Run the program by `python -m instrument.run` for ranges of its iterations and their phases.

    If a dataset or collator draws random numbers in the main process (`dataloader_num_workers=0`), it draws them
    earlier than with the stock loader. With workers, the batches are the same.

    Args:
        *args: arguments of the Trainer.
        enable_async_dataloader: False to use the stock loader and copies.
        **kwargs: arguments of the Trainer.
    """

    accelerator: Any
    args: Any

    def __init__(self, *args: Any, enable_async_dataloader: bool = True, **kwargs: Any) -> None:
        self.enable_async_dataloader = enable_async_dataloader
        self._overlapping = self._training = False
        self._batches: AsyncBatches | None = None
        self._copies: Stream | None = None
        super().__init__(*args, **kwargs)
        stock: Any = super()
        stock.add_callback(_EpochEnd(self))

    def create_accelerator_and_postprocess(self) -> None:
        """Create the accelerator, and let DeepSpeed run with any version of nvtx."""
        stock: Any = super()
        stock.create_accelerator_and_postprocess()
        if getattr(self, "is_deepspeed_enabled", False):
            _leave_domains_of_deepspeed()

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as the stock Trainer does; end the thread afterwards."""
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
        """Take the batches of a step from the asynchronous loader."""
        stock: Any = super()
        if not self._overlapping:
            return stock.get_batch_samples(epoch_iterator, *args, **kwargs)
        if self._batches is None or self._batches.source is not epoch_iterator:
            self._close_batches()
            self._batches = self._open_batches(epoch_iterator)
        return stock.get_batch_samples(self._batches, *args, **kwargs)

    def _open_batches(self, source: Iterator[Any]) -> AsyncBatches:
        # The Trainer requests all batches of an optimizer step at once, so that many have to be ready.
        depth = max(1, self.args.gradient_accumulation_steps)
        if self._copies is None:  # one stream for all epochs, because torch caches memory per stream
            self._copies = Stream.create("copy", self.args.device)
        return AsyncBatches(source, self._copies, depth)

    def _close_batches(self) -> None:
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
