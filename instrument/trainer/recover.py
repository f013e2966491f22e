"""Recovery from transient loader errors and from batches that do not fit into memory.

Both are retried a limited number of times, with one line for each retry.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from instrument.devices import free_memory
from instrument.errors import ConfigError, InstrumentError, LogFunction, log_warning
from instrument.trees import map_tensors, tensors

Item = TypeVar("Item")
ForwardBackward = Callable[[Any, Any], torch.Tensor]

MAX_WAIT_S = 60.0
_PERMANENT_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
# torch's messages for a worker that died. "Caught RuntimeError in DataLoader worker" is an error of the data set.
_DEAD_WORKER = re.compile(r"DataLoader worker \(pid|DataLoader timed out|Pin memory thread exited")
_OUT_OF_MEMORY = re.compile(
    r"out of memory|CUBLAS_STATUS_ALLOC_FAILED|DefaultCPUAllocator: (can't|not enough)", re.IGNORECASE
)


def shares(batches: Sequence[Any], count: Callable[[Any], Any] | None = None) -> list[Any]:
    """Return the weight of each micro-batch in the mean of a step. The weights add up to 1.

    Args:
        batches: the micro-batches of a step.
        count: returns the number of terms in a batch's mean, as a number or a tensor; None for its samples. Weights
            of tensors are tensors, so the host does not wait.
    """
    terms = [(count or _sample_count)(batch) for batch in batches] if len(batches) > 1 else [1]
    total = sum(terms)
    return [term / total for term in terms]


def is_transient(error: BaseException) -> bool:
    """Return whether a loader that raised `error` may succeed on a retry."""
    if isinstance(error, OSError):  # includes ConnectionError and TimeoutError
        return not isinstance(error, _PERMANENT_ERRORS)
    return isinstance(error, RuntimeError) and _DEAD_WORKER.match(str(error)) is not None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` is an out-of-memory error of a device or of the host."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None


def retry_loader(
    open_at: Callable[[int], Iterator[Item]],
    *,
    retries: int = 3,
    wait: float = 1.0,
    log: LogFunction = log_warning,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Item]:
    """Yield every item of an iterator once and in order, and reopen the iterator after a transient error.

        batches = retry_loader(lambda count: iter(build_loader(config, start=position + count)))

    Args:
        open_at: returns an iterator that skips the given number of items.
        retries: maximum number of consecutive retries for one item.
        wait: seconds before the first retry; doubled after each one, up to 60.
        log: receives one line for each failure.
        sleep: waits for a number of seconds.

    Raises:
        OSError: or another transient error, after the last retry.
        Exception: any other error of the iterator, without a retry.
    """
    count = again = 0
    items: Iterator[Item] | None = None
    while True:
        try:
            items = open_at(count) if items is None else items
            item = next(items)
        except StopIteration:
            return
        except Exception as error:
            if again == retries or not is_transient(error):
                raise
            pause, again = float(min(wait * 2**again, MAX_WAIT_S)), again + 1
            log(f"data: {_error_line(error)}; reopening at batch {count} in {pause:g} s, retry {again} of {retries}")
        else:
            count, again = count + 1, 0
            yield item
            continue
        items = None  # the frames of the error are gone, so old and new workers need not fit into memory together
        sleep(pause)


class MicroBatches:
    """Train on a batch in parts that fit into memory, with the gradients of the complete batch.

        recover = MicroBatches(batch_size=32, log=log)

        def forward_backward(batch, weight):
            loss = model(batch)
            (loss * weight).backward()
            return loss

        loss = recover.step(batch, forward_backward, optimizer.zero_grad)

    The smaller size is kept for later steps. The gradients are equal if the loss is a mean over independent samples;
    batch normalisation does not meet this. Only for a single process: a rank cannot repeat a step alone if ranks
    reduce gradients together.

    Args:
        batch_size: maximum number of samples to compute at once.
        retries: maximum number of times the size is halved within a step; None means down to 1.
        count: returns the number of terms in the mean of a batch, if it is not the number of samples, such as the
            number of unmasked labels. The host waits for a tensor only when a batch is split.
        log: receives one line for each new size.

    Attributes:
        size: maximum number of samples that are computed at once.

    Raises:
        ConfigError: `batch_size` is less than 1.
    """

    def __init__(
        self,
        batch_size: int,
        *,
        retries: int | None = None,
        count: Callable[[Any], float | torch.Tensor] | None = None,
        log: LogFunction = log_warning,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch size is {batch_size}; it must be at least 1")
        self.size, self._retries, self._count, self._log = batch_size, retries, count or _sample_count, log

    def step(self, batch: Any, forward_backward: ForwardBackward, zero_grad: Callable[[], object]) -> torch.Tensor:
        """Accumulate the gradients of the mean loss of a batch; return the loss without its graph.

        A failure clears all gradients, including those of earlier batches: use `steps` with accumulation.

        Args:
            batch: tensors, in any nesting, whose first dimension is the sample. Other values, and tensors with
                another first dimension, are passed on unsplit.
            forward_backward: receives a part of the batch and its weight, runs forward and backward of the weighted
                loss, and returns the mean loss of the part. The weights add up to 1.
            zero_grad: clears the gradients.

        Raises:
            InstrumentError: out of memory with one sample, or after `retries`.
        """
        return self.steps([batch], forward_backward, zero_grad)[0]

    def steps(
        self, batches: Sequence[Any], forward_backward: ForwardBackward, zero_grad: Callable[[], object]
    ) -> list[torch.Tensor]:
        """Accumulate the gradients of the mean loss over all terms of `batches`; return the loss of each batch.

        Arguments and errors are those of `step`; the weights of all batches add up to 1. They are tensors if `count`
        returns tensors.
        """
        halved = 0
        while True:
            losses = self._attempt(batches, forward_backward)
            if not isinstance(losses, str):
                return losses
            # The exception and its frames are gone here, so their memory can be freed.
            zero_grad()
            free_memory()
            self._halve(max(map(_sample_count, batches)), losses, halved)
            halved += 1

    def _attempt(self, batches: Sequence[Any], forward_backward: ForwardBackward) -> list[torch.Tensor] | str:
        """Return the losses, or the error message of torch if memory ran out."""
        try:
            weights = shares(batches, self._count)
            return [self._train_batch(*pair, forward_backward) for pair in zip(batches, weights, strict=True)]
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return ". ".join(str(error).strip().partition("\n")[0].split(". ")[:2])

    def _train_batch(self, batch: Any, share: Any, forward_backward: ForwardBackward) -> torch.Tensor:
        parts = list(self._split(batch))
        losses = [forward_backward(part, weight * share).detach() * weight for part, weight in parts]
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]

    def _split(self, batch: Any) -> Iterator[tuple[Any, float]]:
        samples = _sample_count(batch)
        if samples <= self.size:
            yield batch, 1.0
            return
        parts = [_slice_batch(batch, start, start + self.size, samples) for start in range(0, samples, self.size)]
        terms = [float(self._count(part)) for part in parts]
        terms = terms if any(terms) else [1.0] * len(parts)
        # A part without terms has the loss NaN, also with weight 0, so it is left out.
        yield from ((part, term / sum(terms)) for part, term in zip(parts, terms, strict=True) if term)

    def _halve(self, samples: int, reason: str, halved: int) -> None:
        failed = min(self.size, samples)
        if failed == 1 or halved == self._retries:
            raise InstrumentError(
                f"out of memory with {failed} of {samples} samples at once ({reason}); "
                "use gradient checkpointing, a shorter sequence or a smaller model"
            )
        self.size = failed // 2
        self._log(f"out of memory with {failed} samples at once; continuing with {self.size} ({reason})")


def _sample_count(batch: Any) -> int:
    return next((tensor.shape[0] for tensor in tensors(batch) if tensor.dim()), 1)


def _slice_batch(batch: Any, start: int, stop: int, samples: int) -> Any:
    return map_tensors(batch, lambda tensor: tensor[start:stop] if tensor.dim() and len(tensor) == samples else tensor)


def _error_line(error: BaseException) -> str:
    # The message of a worker's error is its traceback; the last line is the error.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if len(lines) > 1 else f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
