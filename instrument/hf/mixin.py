"""The mixin: where a Trainer is open to a subclass, and what it does there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from accelerate.data_loader import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    DataLoaderDispatcher,
    DataLoaderShard,
)
from transformers import TrainerCallback

from instrument.hf.batches import AsyncBatches, StockBatches
from instrument.hf.throughput import Throughput
from instrument.ranges import BACKWARD, CHECKPOINT, FORWARD, OPTIMIZER, VALIDATE, annotate, iteration_name, phase
from instrument.streams import Stream

logger = logging.getLogger(__name__)


class _Boundaries(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """The moments of a run that only a callback hears of."""

    def __init__(self, trainer: AsyncTrainerMixin) -> None:
        self._trainer = trainer
        self._optimizer = ExitStack()

    def on_pre_optimizer_step(self, *_args: Any, **_kwargs: Any) -> None:
        self._optimizer = self._trainer._step_ranges.enter_context(ExitStack())
        self._optimizer.enter_context(phase(OPTIMIZER))

    def on_optimizer_step(self, *_args: Any, **_kwargs: Any) -> None:
        self._optimizer.close()

    def on_epoch_end(self, *_args: Any, **_kwargs: Any) -> None:
        self._trainer._close_batches()


class AsyncTrainerMixin:
    """Put this in front of `transformers.Trainer`, or of a class derived from it.

    While `train` runs, batches stay on the host until a `PrefetchLoader` copies them on a stream of its own.
    Each `iteration N` lasts from the first batch of an optimizer step to the first batch of the next one, and
    holds `data_load`, `forward`, `backward`, `optimizer` (clipping, then the step), and `validate` and
    `checkpoint` where they happen; `h2d` is on the thread that copies.
    The log entries that hold a loss gain `perf/tokens_per_s` and `perf/samples_per_s` since the one before:
    of this process, padding, evaluation and checkpoints left out.

    A dataset or collator that draws random numbers in the main process (`dataloader_num_workers=0`) draws
    them earlier than in the stock path; with workers, batches are the same in both.

    Args:
        *args: the Trainer's own.
        enable_async_dataloader: False leaves reading and copying to the stock path; ranges and figures stay.
        **kwargs: the Trainer's own.
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
        self._throughput = Throughput()
        self._step_ranges = ExitStack()
        super().__init__(*args, **kwargs)
        stock: Any = super()
        stock.add_callback(_Boundaries(self))

    def create_accelerator_and_postprocess(self) -> None:
        """Name the backward pass and the clipping where every Trainer calls them."""
        stock: Any = super()
        stock.create_accelerator_and_postprocess()
        for name, method in ((BACKWARD, "backward"), (OPTIMIZER, "clip_grad_norm_")):
            setattr(self.accelerator, method, phase(name)(getattr(self.accelerator, method)))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as the stock Trainer does, and leave no thread and no open range behind."""
        stock: Any = super()
        self._training, self._throughput = True, Throughput()
        try:
            return stock.train(*args, **kwargs)
        finally:
            self._training = False
            self._close_batches()

    def get_train_dataloader(self) -> Any:
        """Return the stock loader; during `train`, and if asynchronous, one that leaves batches on the host."""
        stock: Any = super()
        self._close_batches()
        self._overlapping = False
        if not (self._training and self.enable_async_dataloader):
            return stock.get_train_dataloader()
        obstacle = _obstacle(self.args.device, self.accelerator)
        with nullcontext() if obstacle else _batches_on_host(self.accelerator):
            loader = stock.get_train_dataloader()
        if isinstance(loader, DataLoaderDispatcher):
            obstacle = "process 0 reads for all (dispatch_batches, or an IterableDataset on several processes)"
        if obstacle is None and isinstance(loader, DataLoaderShard):
            loader.device = None
        self._overlapping = obstacle is None
        self._say_what_costs_overlap(obstacle)
        return loader

    def get_batch_samples(self, epoch_iterator: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
        """Begin an iteration, and take its batches from the asynchronous loader."""
        stock: Any = super()
        if self._batches is None or self._batches.source is not epoch_iterator:
            self._close_batches()
            self._begin_iteration()
            self._batches = self._open_batches(epoch_iterator)
        elif not self._batches.ended:
            self._begin_iteration()
        return stock.get_batch_samples(self._batches, *args, **kwargs)

    def compute_loss(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Name the forward pass of training."""
        stock: Any = super()
        with phase(FORWARD) if model.training else nullcontext():
            return stock.compute_loss(model, *args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Name the evaluation, and leave it out of the tokens a second."""
        stock: Any = super()
        with self._throughput.paused(), phase(VALIDATE):
            return stock.evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        stock: Any = super()
        with self._throughput.paused(), phase(CHECKPOINT):
            stock._save_checkpoint(*args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the rates to an entry that holds a loss; the Trainer has waited for the GPU just before."""
        stock: Any = super()
        if "loss" in logs:
            logs.update(self._throughput.take())
        stock.log(logs, *args, **kwargs)

    def _begin_iteration(self) -> None:
        self._step_ranges.close()
        self._step_ranges.enter_context(annotate(iteration_name(self.state.global_step)))
        self._throughput.start()

    def _open_batches(self, source: Iterator[Any]) -> StockBatches:
        main_input = getattr(self.model, "main_input_name", "input_ids")
        if not self._overlapping:
            return StockBatches(source, main_input, self._throughput)
        # The Trainer asks for all batches of an optimizer step at once: to be ahead is to have as many ready.
        depth = max(1, self.args.gradient_accumulation_steps)
        if self._copies is None:  # one for all epochs: memory that torch has cached for a stream serves that one alone
            self._copies = Stream.create("copy", self.args.device)
        return AsyncBatches(source, main_input, self._throughput, self._copies, depth)

    def _close_batches(self) -> None:
        self._throughput.stop()
        self._step_ranges.close()
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _say_what_costs_overlap(self, obstacle: str | None) -> None:
        if obstacle is not None:
            logger.warning("the stock data path is used although enable_async_dataloader is on: %s", obstacle)
        elif self.args.device.type == "cuda" and self.args.logging_nan_inf_filter:
            logger.warning(
                "logging_nan_inf_filter=True waits for the GPU after every micro-batch: pass False to keep it busy"
            )


def _obstacle(device: torch.device, accelerator: Any) -> str | None:
    """Say why batches cannot be read in the background, if they cannot.

    Collective calls of two threads may meet in another order on each process, and then nothing ends.
    """
    if device.type not in ("cpu", "cuda"):
        return f"device {device} is neither a CUDA GPU nor the CPU"
    if getattr(getattr(accelerator, "parallelism_config", None), "sp_enabled", False):
        return "sequence parallelism exchanges batches as they are read"
    if getattr(accelerator, "use_stateful_dataloader", False):
        return "the state of a stateful data loader would be that of batches read ahead"
    return None


@contextmanager
def _batches_on_host(accelerator: Any) -> Iterator[None]:
    """Let an IterableDataset that is prepared inside leave its batches where they are read.

    Of one process alone: with several, accelerate would then divide it between them in another way.
    """
    placed = accelerator.device_placement
    if accelerator.num_processes == 1 and not accelerator.dispatch_batches:
        accelerator.device_placement = False
    try:
        yield
    finally:
        accelerator.device_placement = placed
