"""Pinned host memory: bounded, and used again.

Copies from pinned memory run while the host goes on. But pinned memory cannot be swapped out, and getting it
takes milliseconds and stops the device: so it is counted, and the same buffers serve batch after batch.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from instrument.data.host_memory import available_bytes, in_words
from instrument.errors import ConfigError, InstrumentError
from instrument.streams import Event
from instrument.trees import leaves, map_leaves, moves_itself, nbytes

_PAGE = 4096
# Asking again costs less than a blocking call would: that one would look like a wait of the training itself.
_ASK_AGAIN_SECONDS = 0.0005


class PinnedBudget:
    """How many bytes of pinned memory may be held at once; safe to share between threads.

    Args:
        limit_bytes: the most; raises ConfigError where it is not positive.
    """

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes <= 0:
            raise ConfigError(f"pinned budget: {limit_bytes} bytes hold nothing: give it at least the size of a batch")
        self.limit_bytes = limit_bytes
        self._used = self._most = 0
        self._given: deque[int] = deque()
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """What is taken now."""
        with self._lock:
            return self._settled()

    def try_take(self, size: int) -> bool:
        """Count `size` bytes as taken; return False, and count nothing, where that would pass the limit.

        Raises InstrumentError where the limit allows it and the machine has not that much memory left.
        """
        with self._lock:
            used = self._settled() + size
            if used > self.limit_bytes:
                return False
            if used > self._most:  # below that, torch still holds what was given back
                self._check_machine(used - self._most)
                self._most = used
            self._used = used
            return True

    def take(self, size: int) -> None:
        """Count `size` bytes as taken; raise InstrumentError where that would pass the limit."""
        if not self.try_take(size):
            raise InstrumentError(
                f"pinned memory: {in_words(size)} more would pass the budget of {in_words(self.limit_bytes)}, of which "
                f"{in_words(self.used_bytes)} are in use: raise the budget, or make the batch or the depth smaller"
            )

    def give(self, size: int) -> None:
        """Count `size` bytes as given back."""
        # No lock: the garbage collector may call this at any moment, also while this thread holds the lock.
        self._given.append(size)

    def _settled(self) -> int:
        while self._given:
            self._used -= self._given.popleft()
        return self._used

    def _check_machine(self, size: int) -> None:
        available = available_bytes()
        if available is not None and size > available:
            raise InstrumentError(
                f"pinned memory: {in_words(size)} more fit the budget of {in_words(self.limit_bytes)}, but the "
                f"machine has {in_words(available)} left: make the batch or the depth smaller"
            )


def capacity(size: int) -> int:
    """Return the bytes that torch pins for `size` bytes: the next power of two, and a page at least."""
    return max(_PAGE, 1 << (size - 1).bit_length()) if size else 0


@dataclass(frozen=True, slots=True)
class Lease:
    """One batch in pinned memory, until its copy to the device is done.

    Attributes:
        tree: the batch, its tensors in pinned memory wherever they can be.
    """

    tree: Any
    _buffers: tuple[torch.Tensor, ...]
    _foreign_bytes: int


class PinnedRing:
    """Pinned buffers that batches take turns in.

    A buffer is used again only after the copy out of it is done. Buffers have sizes of powers of two, which is
    what torch's allocator of pinned memory makes of any size, so that the budget counts what is really held;
    batches whose sizes vary settle on the buffers that fit them. Tensors that are pinned already are not copied.

    Args:
        slots: the most batches in pinned memory at once.
        budget: what the buffers are counted against.
        allocate: how a buffer of so many bytes is made, for tests.
    """

    def __init__(
        self, slots: int, budget: PinnedBudget, *, allocate: Callable[[int], torch.Tensor] | None = None
    ) -> None:
        self.slots, self.budget = slots, budget
        self._allocate = allocate or _pinned_bytes
        self._lock = threading.Lock()
        self._free: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        self._copying: list[tuple[Lease, Event]] = []
        self._leased = 0
        self._said = False

    def pin(self, tree: Any) -> Lease:
        """Return `tree` in pinned memory, copied there; give the lease to `release` afterwards.

        Waits, asking every half millisecond, while all slots are taken: for a background thread. Raises
        InstrumentError where the budget does not hold even this one batch.
        """
        parts = [leaf for leaf in leaves(tree) if _fits_a_buffer(leaf)]
        foreign = sum(nbytes(leaf) for leaf in leaves(tree) if _pins_itself(leaf))
        buffers = self._acquire([capacity(nbytes(part)) for part in parts], foreign)
        try:
            pinned = self._filled(tree, buffers)
        except BaseException:
            self._give_back(Lease(None, tuple(buffers), foreign))
            raise
        return Lease(pinned, tuple(buffers), foreign)

    def release(self, lease: Lease, copied: Event | None = None) -> None:
        """Let the buffers of `lease` be used again, once `copied` is done; at once where it is None.

        Until then the batch is kept, so that memory pinned by others stays as it is too.
        """
        if copied is None:
            self._give_back(lease)
            return
        with self._lock:
            self._copying.append((lease, copied))

    def _filled(self, tree: Any, buffers: list[torch.Tensor]) -> Any:
        unused = iter(buffers)

        def pinned(leaf: Any) -> Any:
            if _fits_a_buffer(leaf):
                return _copied(leaf, next(unused))
            return leaf.pin_memory() if _pins_itself(leaf) else leaf

        with torch.no_grad():
            return map_leaves(tree, pinned)

    def _acquire(self, capacities: list[int], foreign: int) -> list[torch.Tensor]:
        while True:
            with self._lock:
                self._reclaim()
                if self._leased < self.slots:
                    buffers = self._take(capacities, foreign)
                    if buffers is not None:
                        self._leased += 1
                        return buffers
                    self._say(capacities, foreign)
            time.sleep(_ASK_AGAIN_SECONDS)

    def _take(self, capacities: list[int], foreign: int) -> list[torch.Tensor] | None:
        wanted = Counter(capacities)
        missing = sum(size * max(0, count - len(self._free[size])) for size, count in wanted.items())
        if not self.budget.try_take(missing + foreign):
            if self._leased or not any(self._free.values()):
                return None
            self._drop_free()
            return self._take(capacities, foreign)
        return [self._free[size].pop() if self._free[size] else self._allocate(size) for size in capacities]

    def _say(self, capacities: list[int], foreign: int) -> None:
        """Say before it hurts that the budget is small: too small for one batch, or for all the slots."""
        size, limit = in_words(sum(capacities) + foreign), in_words(self.budget.limit_bytes)
        if not self._leased:
            raise InstrumentError(
                f"pinned memory: one batch takes {size}, and {in_words(self.budget.used_bytes)} of the budget of "
                f"{limit} are in use: raise the budget, or make the batch smaller"
            )
        if not self._said:
            self._said = True
            warnings.warn(
                f"pinned memory: the budget of {limit} holds {self._leased} of {self.slots} batches of {size}, so "
                "copies overlap less: raise the budget, or make the batch smaller",
                RuntimeWarning,
                stacklevel=2,
            )

    def _reclaim(self) -> None:
        waiting = []
        for lease, copied in self._copying:
            if copied.query():
                self._return(lease)
            else:
                waiting.append((lease, copied))
        self._copying = waiting

    def _give_back(self, lease: Lease) -> None:
        with self._lock:
            self._return(lease)

    def _return(self, lease: Lease) -> None:
        for buffer in lease._buffers:
            self._free[buffer.numel()].append(buffer)
        self.budget.give(lease._foreign_bytes)
        self._leased -= 1

    def _drop_free(self) -> None:
        self.budget.give(sum(size * len(buffers) for size, buffers in self._free.items()))
        self._free.clear()


def _pinned_bytes(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def _fits_a_buffer(leaf: Any) -> bool:
    """A plain tensor in ordinary memory; a subclass must pin itself, to stay what it is."""
    return (
        type(leaf) is torch.Tensor
        and _is_ordinary(leaf)
        and not leaf.is_quantized
        and leaf.numel() > 0
        and not leaf.is_pinned()
    )


def _pins_itself(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return _is_ordinary(leaf) and not _fits_a_buffer(leaf) and leaf.numel() > 0 and not leaf.is_pinned()
    return moves_itself(leaf)


def _is_ordinary(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout is torch.strided


def _copied(tensor: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    # As `to()` keeps it, whatever the memory format: a channels-last image stays channels-last.
    strides = torch.empty_like(tensor, device="meta").stride()
    room = buffer[: tensor.numel() * tensor.element_size()].view(tensor.dtype)
    return room.as_strided(tensor.shape, strides).copy_(tensor)
