"""Failures that a run survives: a loader that fails for a moment, a batch too large for the memory.

Both are tried again a bounded number of times, and each time is said in one line.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from instrument.errors import ConfigError, InstrumentError
from instrument.logging import LogFunction, log_warning
from instrument.trees import map_tensors, tensors

Item = TypeVar("Item")
ForwardBackward = Callable[[Any, float], torch.Tensor]


LONGEST_WAIT_S = 60.0
# Time does not mend these.
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
# torch's own words for a worker that died; "Caught RuntimeError in DataLoader worker" is a mistake in the data set.
_DEAD_WORKER = re.compile(r"DataLoader worker \(pid|DataLoader timed out|Pin memory thread exited")
_OUT_OF_MEMORY = re.compile(
    r"out of memory|CUBLAS_STATUS_ALLOC_FAILED|DefaultCPUAllocator: (can't|not enough)", re.IGNORECASE
)


def is_transient(error: BaseException) -> bool:
    """Return whether a loader that raised `error` may succeed when it is asked again."""
    if isinstance(error, OSError):  # ConnectionError and TimeoutError among them
        return not isinstance(error, _LASTING)
    return isinstance(error, RuntimeError) and _DEAD_WORKER.match(str(error)) is not None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that a device, or the host, had no memory left."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None


def retrying(
    call: Callable[[], Item],
    *,
    retries: int = 3,
    wait: float = 1.0,
    say: LogFunction = log_warning,
    sleep: Callable[[float], None] = time.sleep,
) -> Item:
    """Return what `call` returns, calling it again after a transient error.

    It is for calls that may be repeated, such as opening a file. An iterator may not: a generator that raised
    is at its end, and a DataLoader goes on with the batch after the one that failed. For those there is
    `reopening`; where such an end follows an error here, the error is raised.

    Args:
        call: what may fail.
        retries: how many further times it is called.
        wait: seconds before the second time; doubled after each, 60 at most.
        say: told about each failure in one line.
        sleep: how it waits.

    Raises:
        OSError: or another transient error, after the last time.
        Exception: any other error of `call`, at once.
    """
    failed: BaseException | None = None
    for again in range(retries + 1):
        try:
            return call()
        except StopIteration:
            if failed is None:
                raise
            raise failed from None
        except Exception as error:
            if again == retries or not is_transient(error):
                raise
            failed = error
            pause = _pause(wait, again)
            say(f"data: {_short(error)}; trying again in {pause:g} s, {again + 1} of {retries}")
        sleep(pause)
    raise ValueError(f"retries is {retries}: it cannot be negative")


def reopening(
    open_at: Callable[[int], Iterator[Item]],
    *,
    retries: int = 3,
    wait: float = 1.0,
    say: LogFunction = log_warning,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Item]:
    """Yield every item of an iterator once and in order, opening it again where it fails for a moment.

        batches = reopening(lambda given: iter(build_loader(config, start=position + given)))

    Args:
        open_at: makes an iterator that goes on after as many items as it is told.
        retries: how many times in a row it is opened again for one item.
        wait: seconds before the first time; doubled after each, 60 at most.
        say: told about each failure in one line.
        sleep: how it waits.

    Raises:
        OSError: or another transient error, after the last time.
        Exception: any other error of the iterator, at once.
    """
    given = again = 0
    items: Iterator[Item] | None = None
    while True:
        try:
            items = open_at(given) if items is None else items
            item = next(items)
        except StopIteration:
            return
        except Exception as error:
            if again == retries or not is_transient(error):
                raise
            pause, again = _pause(wait, again), again + 1
            say(f"data: {_short(error)}; opened again at batch {given} in {pause:g} s, {again} of {retries}")
        else:
            given, again = given + 1, 0
            yield item
            continue
        items = None  # here no frame of the error holds its workers: two sets of them need not fit
        sleep(pause)


class MicroBatches:
    """Train on a batch in as many parts as the memory needs, with the gradients of the whole batch.

        recover = MicroBatches(batch_size=32, say=say)

        def forward_backward(batch, weight):
            loss = model(batch)
            (loss * weight).backward()
            return loss

        loss = recover.step(batch, forward_backward, optimizer.zero_grad)

    The smaller size is remembered. Gradients are equal where the loss is the mean over the samples and samples do not
    see each other; batch normalisation does not allow it. For one process: where ranks reduce gradients
    together, one of them cannot repeat a step alone.

    Args:
        batch_size: the largest number of samples to compute at once.
        retries: how many times the size is halved within one step; None goes down to 1.
        count: how many terms a batch's mean has, where that is not its number of samples: its unmasked labels. A tensor
            is read by the host, which waits for it, only when a batch is split.
        say: told about each new size in one line.

    Raises:
        ConfigError: `batch_size` is less than 1.
    """

    def __init__(
        self,
        batch_size: int,
        *,
        retries: int | None = None,
        count: Callable[[Any], float | torch.Tensor] | None = None,
        say: LogFunction = log_warning,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch size is {batch_size}: it has to be at least 1")
        self._size, self._retries, self._count, self._say = batch_size, retries, count or _samples, say

    @property
    def size(self) -> int:
        """The largest number of samples that is computed at once."""
        return self._size

    def step(self, batch: Any, forward_backward: ForwardBackward, zero_grad: Callable[[], object]) -> torch.Tensor:
        """Add the gradients of a batch's mean loss, which is returned, without a graph.

        After a failure every gradient is cleared, those of earlier batches too: under accumulation use `steps`.

        Args:
            batch: tensors whose first dimension is the samples', in any nesting. A tensor with another first
                dimension is handed over whole, as is what is no tensor.
            forward_backward: given a part of the batch and its weight, returns the part's mean loss after
                the backward pass of that loss times the weight. Weights add up to 1.
            zero_grad: clears the gradients.

        Raises:
            InstrumentError: out of memory with one sample, or after `retries`.
        """
        return self.steps([batch], forward_backward, zero_grad)[0]

    def steps(
        self, batches: Sequence[Any], forward_backward: ForwardBackward, zero_grad: Callable[[], object]
    ) -> list[torch.Tensor]:
        """Add the gradients of the mean over `batches` of each one's loss, and return those losses.

        Arguments and errors are those of `step`; the weights of all batches together add up to 1.
        """
        halved = 0
        while True:
            losses = self._attempt(batches, forward_backward)
            if not isinstance(losses, str):
                return losses
            # The exception and all its frames are gone here, so what they held can be freed.
            zero_grad()
            _free()
            self._halve(max(map(_samples, batches)), losses, halved)
            halved += 1

    def _attempt(self, batches: Sequence[Any], forward_backward: ForwardBackward) -> list[torch.Tensor] | str:
        """Return the losses, or, where the memory ran out, what torch said."""
        try:
            return [self._one(batch, forward_backward, 1 / len(batches)) for batch in batches]
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return ". ".join(str(error).strip().partition("\n")[0].split(". ")[:2])

    def _one(self, batch: Any, forward_backward: ForwardBackward, share: float) -> torch.Tensor:
        parts = list(self._parts(batch))
        losses = [forward_backward(part, weight * share).detach() * weight for part, weight in parts]
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]

    def _parts(self, batch: Any) -> Iterator[tuple[Any, float]]:
        samples = _samples(batch)
        if samples <= self._size:
            yield batch, 1.0
            return
        parts = [_cut(batch, start, start + self._size, samples) for start in range(0, samples, self._size)]
        terms = [float(self._count(part)) for part in parts]
        terms = terms if any(terms) else [1.0] * len(parts)
        # A part without a term has no mean: its loss would be NaN, which a weight of 0 does not take away.
        yield from ((part, term / sum(terms)) for part, term in zip(parts, terms, strict=True) if term)

    def _halve(self, samples: int, reason: str, halved: int) -> None:
        failed = min(self._size, samples)
        if failed == 1 or halved == self._retries:
            raise InstrumentError(
                f"out of memory with {failed} of {samples} samples at once ({reason}): gradient checkpointing, "
                "a shorter sequence or a smaller model needs less"
            )
        self._size = failed // 2
        self._say(f"out of memory with {failed} samples at once: from here on {self._size} ({reason})")


def _samples(batch: Any) -> int:
    return next((tensor.shape[0] for tensor in tensors(batch) if tensor.dim()), 1)


def _cut(batch: Any, start: int, stop: int, samples: int) -> Any:
    return map_tensors(batch, lambda tensor: tensor[start:stop] if tensor.dim() and len(tensor) == samples else tensor)


def _free() -> None:
    gc.collect()  # a failed backward leaves cycles
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _pause(wait: float, again: int) -> float:
    return float(min(wait * 2**again, LONGEST_WAIT_S))


def _short(error: BaseException) -> str:
    # A worker's traceback comes as the message; the error itself is its last line.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if len(lines) > 1 else f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
