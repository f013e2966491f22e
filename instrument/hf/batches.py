"""The batches of an epoch of a Trainer, their throughput in samples and tokens per second, and the ranges of steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Any

import torch

from instrument.prefetch import PrefetchLoader
from instrument.ranges import DATA_LOAD, annotate, iteration_name, phase
from instrument.streams import Stream

TOKENS_PER_S = "perf/tokens_per_s"
SAMPLES_PER_S = "perf/samples_per_s"
STEP_MS = "perf/step_ms"


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Samples in a batch, and tokens without padding (None if the batch has no tokens)."""

    samples: int
    tokens: int | torch.Tensor | None


def batch_size(batch: object, main_input: str = "input_ids") -> BatchSize:
    """Count the samples and tokens of a batch without waiting for a GPU.

    Args:
        batch: a batch from the loader. Anything but a mapping with tensors counts as 0 samples.
        main_input: key of the model's main input, of shape (samples, ...).

    Returns:
        The tokens are the sum of a two-dimensional `attention_mask`, or else the elements of an integer main input.
        They are a number for a batch in host memory, and a tensor for a mask on a device.
    """
    tensors = {} if not isinstance(batch, Mapping) else {k: v for k, v in batch.items() if torch.is_tensor(v)}
    main = tensors.get(main_input, next((tensor for tensor in tensors.values() if tensor.dim()), None))
    if main is None or not main.dim():
        return BatchSize(0, None)
    mask = tensors.get("attention_mask")
    if mask is not None and mask.dim() == 2:
        tokens = mask.sum()
        return BatchSize(len(main), int(tokens) if tokens.device.type == "cpu" else tokens)
    has_tokens = main_input in tensors and not main.is_floating_point()
    return BatchSize(len(main), main.numel() if has_tokens else None)


class Throughput:
    """Samples and tokens per second of this process, over the time spent on training only."""

    def __init__(self) -> None:
        self._samples = 0
        self._tokens: int | torch.Tensor | None = None
        self._seconds = 0.0
        self._started_at: float | None = None

    def start(self) -> None:
        """Start the clock if it does not run."""
        if self._started_at is None:
            self._started_at = perf_counter()

    def stop(self) -> None:
        """Stop the clock if it runs."""
        if self._started_at is not None:
            self._seconds += perf_counter() - self._started_at
            self._started_at = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of a `with` block, such as an evaluation. Blocks can be nested."""
        was_running = self._started_at is not None
        self.stop()
        try:
            yield
        finally:
            if was_running:
                self.start()

    def add(self, size: BatchSize) -> None:
        """Count a batch that is trained on next."""
        self._samples += size.samples
        if size.tokens is not None:
            self._tokens = size.tokens if self._tokens is None else self._tokens + size.tokens

    def take(self) -> dict[str, float]:
        """Return the rates per second since the last call, and start anew; empty if nothing was counted.

        Waits for the GPU if tokens were counted there, which only happens without the asynchronous loader.
        """
        with self.paused():
            rates: dict[str, float] = {}
            if self._samples and self._seconds > 0:
                rates[SAMPLES_PER_S] = self._samples / self._seconds
                if self._tokens is not None:
                    rates[TOKENS_PER_S] = int(self._tokens) / self._seconds
            self._samples, self._tokens, self._seconds = 0, None, 0.0
        return rates


class StepRanges:
    """The open range `iteration N` of a loop, with at most one phase inside it, and the times of the steps."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._iteration, self._phase = ExitStack(), ExitStack()
        self._began_at = 0
        self._durations: list[int] = []

    def begin(self, step: int) -> None:
        """Start a step, which ends the one before. Do nothing if `step` has begun already."""
        if step == self._step:
            return
        now = perf_counter_ns()
        if self._step is not None:
            self._durations.append(now - self._began_at)
        self.close()
        self._step, self._began_at = step, now
        self._iteration.enter_context(annotate(iteration_name(step)))

    def enter(self, name: str) -> None:
        """Open a phase, and close the open one."""
        self.leave()
        self._phase.enter_context(phase(name))

    def leave(self) -> None:
        """Close the open phase, if there is one."""
        self._phase.close()

    def close(self) -> None:
        """Close all ranges."""
        self.leave()
        self._iteration.close()
        self._step = None

    def figures(self) -> dict[str, float]:
        """Return perf/step_ms, the median host time of the steps since the last call; empty if none has ended."""
        durations, self._durations = self._durations, []
        return {STEP_MS: median(durations) / 1e6} if durations else {}


class StockBatches:
    """The batches of an epoch, read as the stock Trainer reads them, with a range around each read."""

    def __init__(self, source: Iterator[Any], main_input: str, throughput: Throughput) -> None:
        self.source, self._main_input, self._throughput = source, main_input, throughput
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            batch, size = self._read()
        except StopIteration:
            self.ended = True
            raise
        self._throughput.add(size)
        return batch

    def _read(self) -> tuple[Any, BatchSize]:
        with phase(DATA_LOAD):
            batch = next(self.source)
        return batch, batch_size(batch, self._main_input)

    def close(self) -> None:
        """Stop reading and drop batches read ahead."""


class AsyncBatches(StockBatches):
    """The batches of an epoch, read and copied to the device while earlier ones are trained on.

    Close it before the source starts another epoch: its thread reads ahead and would change the source's state.

    Args:
        source: host batches. The first one is read in the constructor, the others on the loader's thread.
        main_input: see `batch_size`.
        throughput: counts the batches when they are returned.
        stream: the copy stream; it also gives the device.
        depth: how many batches can be ready.
    """

    def __init__(
        self, source: Iterator[Any], main_input: str, throughput: Throughput, stream: Stream, depth: int
    ) -> None:
        super().__init__(source, main_input, throughput)
        self._sizes: deque[BatchSize] = deque()
        # At its first batch the source forks workers, draws a seed and communicates with other processes. That must
        # happen on this thread, which would wait for the first batch anyway.
        with phase(DATA_LOAD):
            first = list(islice(source, 1))
        self._loader = PrefetchLoader(self._measure(chain(first, source)), stream.device, depth=depth, stream=stream)
        self._batches = iter(self._loader)

    def _measure(self, batches: Iterator[Any]) -> Iterator[Any]:
        # The loader keeps the order, so the oldest size belongs to the next batch.
        for batch in batches:
            self._sizes.append(batch_size(batch, self._main_input))
            yield batch

    def _read(self) -> tuple[Any, BatchSize]:
        batch = next(self._batches)
        return batch, self._sizes.popleft()

    def close(self) -> None:
        """Stop the loader's thread and wait for its end; then end the source, and with it its worker processes."""
        self._loader.close()
        end = getattr(self.source, "close", None)
        if callable(end):
            with suppress(ValueError):  # the thread was abandoned while it reads
                end()
