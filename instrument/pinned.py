"""Pinned host memory: a ring of reusable buffers, and a collator that makes batches in pinned memory.

A copy from pinned memory to the GPU does not block the host. Allocating pinned memory takes milliseconds and
synchronizes the device, so buffers are reused.
"""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import collate as collate_by_type
from torch.utils.data._utils.collate import default_collate_fn_map

from instrument.errors import InstrumentError
from instrument.memory import PinnedBudget, format_bytes, pinned_bytes
from instrument.streams import Event
from instrument.trees import leaves, map_leaves, moves_itself, nbytes

# Polling costs less than a blocking call, which would appear in a capture as a wait of the training.
_POLL_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class Lease:
    """A batch in pinned memory, held until its copy to the device is done.

    Attributes:
        tree: the batch; its tensors are in pinned memory where possible.
    """

    tree: Any
    _buffers: tuple[torch.Tensor, ...]
    _foreign_bytes: int


class PinnedRing:
    """Reusable pinned buffers for batches on their way to a device.

    A buffer is reused only after the copy from it is done. Buffer sizes are powers of two, as in torch's allocator of
    pinned memory, so the budget counts the memory that is really held and batches of varying sizes share buffers.
    Tensors that are already pinned are not copied.

        ring = PinnedRing(slots=3, budget=PinnedBudget(1 << 30))
        lease = ring.pin(batch)
        copies = map_tensors(lease.tree, lambda tensor: tensor.to("cuda", non_blocking=True))
        ring.release(lease, Event("cuda").record())

    Args:
        slots: the maximum number of batches in pinned memory.
        budget: the limit that the buffers count against.
        allocate: returns a pinned buffer of a number of bytes; for tests.
    """

    def __init__(
        self, slots: int, budget: PinnedBudget, *, allocate: Callable[[int], torch.Tensor] | None = None
    ) -> None:
        self.slots, self.budget = slots, budget
        self._allocate = allocate or _allocate_pinned
        self._lock = threading.Lock()
        self._free: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        self._copying: list[tuple[Lease, Event]] = []
        self._leased = 0
        self._warned = False

    def pin(self, tree: Any) -> Lease:
        """Copy a batch into pinned memory; pass the lease to `release` afterwards.

        Call it on a background thread: it waits, polling every 0.5 ms, while all slots are in use.

        Args:
            tree: any nested batch, see `instrument.trees`.

        Raises:
            InstrumentError: the budget is too small for this one batch.
        """
        parts = [leaf for leaf in leaves(tree) if _fits_buffer(leaf)]
        foreign = sum(nbytes(leaf) for leaf in leaves(tree) if _pins_itself(leaf))
        buffers = self._acquire([pinned_bytes(nbytes(part)) for part in parts], foreign)
        try:
            pinned = self._fill(tree, buffers)
        except BaseException:
            self._reclaim(Lease(None, tuple(buffers), foreign))
            raise
        return Lease(pinned, tuple(buffers), foreign)

    def release(self, lease: Lease, copied: Event | None = None) -> None:
        """Free the buffers of `lease` once the event `copied` is done, or at once if it is None.

        The ring keeps the batch until then, including memory that was pinned elsewhere.
        """
        if copied is None:
            self._reclaim(lease)
            return
        with self._lock:
            self._copying.append((lease, copied))

    def _fill(self, tree: Any, buffers: list[torch.Tensor]) -> Any:
        unused = iter(buffers)

        def pin_leaf(leaf: Any) -> Any:
            if _fits_buffer(leaf):
                return _copy_into(leaf, next(unused))
            return leaf.pin_memory() if _pins_itself(leaf) else leaf

        with torch.no_grad():
            return map_leaves(tree, pin_leaf)

    def _acquire(self, sizes: list[int], foreign: int) -> list[torch.Tensor]:
        while True:
            with self._lock:
                self._reclaim_copied()
                if self._leased < self.slots:
                    buffers = self._take(sizes, foreign)
                    if buffers is not None:
                        self._leased += 1
                        return buffers
                    self._report_small_budget(sizes, foreign)
            time.sleep(_POLL_SECONDS)

    def _take(self, sizes: list[int], foreign: int) -> list[torch.Tensor] | None:
        missing = sum(size * max(0, count - len(self._free[size])) for size, count in Counter(sizes).items())
        if not self.budget.try_take(missing + foreign):
            if self._leased or not any(self._free.values()):
                return None
            self._drop_free_buffers()
            return self._take(sizes, foreign)
        return [self._free[size].pop() if self._free[size] else self._allocate(size) for size in sizes]

    def _report_small_budget(self, sizes: list[int], foreign: int) -> None:
        """Raise if the budget is too small for one batch; warn once if it is too small for all slots."""
        size, limit = format_bytes(sum(sizes) + foreign), format_bytes(self.budget.limit_bytes)
        if not self._leased:
            raise InstrumentError(
                f"pinned memory: one batch takes {size}, and {format_bytes(self.budget.used_bytes)} of the budget of "
                f"{limit} are in use: raise the budget, or use a smaller batch"
            )
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"pinned memory: the budget of {limit} holds {self._leased} of {self.slots} batches of {size}, so "
                "copies overlap less: raise the budget, or use a smaller batch",
                RuntimeWarning,
                stacklevel=2,
            )

    def _reclaim_copied(self) -> None:
        pending = []
        for lease, copied in self._copying:
            if copied.query():
                self._return_buffers(lease)
            else:
                pending.append((lease, copied))
        self._copying = pending

    def _reclaim(self, lease: Lease) -> None:
        with self._lock:
            self._return_buffers(lease)

    def _return_buffers(self, lease: Lease) -> None:
        for buffer in lease._buffers:
            self._free[buffer.numel()].append(buffer)
        self.budget.give(lease._foreign_bytes)
        self._leased -= 1

    def _drop_free_buffers(self) -> None:
        self.budget.give(sum(size * len(buffers) for size, buffers in self._free.items()))
        self._free.clear()


class PinnedCollator:
    """A `collate_fn` for `DataLoader` that makes batches in pinned memory.

        DataLoader(dataset, batch_size=32, collate_fn=PinnedCollator(PinnedBudget(1 << 30)))

    Samples are stacked directly into pinned memory. The result of a custom `collate` is copied there. A batch counts
    against the budget as long as it exists. In DataLoader workers and without a GPU, batches are in ordinary memory;
    with workers, use `DataLoader(pin_memory=True)`.

    Args:
        budget: the limit; the batch that exceeds it raises InstrumentError.
        collate: makes a batch from a list of samples; None for torch's `default_collate`.
    """

    def __init__(self, budget: PinnedBudget, collate: Callable[[Sequence[Any]], Any] | None = None) -> None:
        self.budget, self.collate = budget, collate

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return one batch made from `samples`."""
        if get_worker_info() is not None or not torch.cuda.is_available():
            return (self.collate or default_collate)(list(samples))
        if self.collate is not None:
            return self.pin(self.collate(samples))
        functions = {**default_collate_fn_map, torch.Tensor: self._stack}
        return self.pin(collate_by_type(list(samples), collate_fn_map=functions))

    def pin(self, tree: Any) -> Any:
        """Return `tree` with every tensor in pinned memory; tensors that are already pinned are not copied."""
        return map_leaves(tree, self._pin_leaf)

    def _stack(self, samples: Sequence[torch.Tensor], **options: Any) -> torch.Tensor:
        first = samples[0]
        if any(not _can_stack_pinned(sample) or sample.dtype != first.dtype for sample in samples):
            stacked: torch.Tensor = default_collate_fn_map[torch.Tensor](samples, **options)
            return stacked
        return torch.stack(list(samples), out=self._allocate((len(samples), *first.shape), first.dtype))

    def _pin_leaf(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf.pin_memory() if moves_itself(leaf) else leaf
        if leaf.is_cuda or leaf.layout is not torch.strided or leaf.is_pinned():
            return leaf
        size = pinned_bytes(leaf.nbytes)
        self.budget.take(size)
        pinned = leaf.pin_memory()
        weakref.finalize(pinned, self.budget.give, size)
        return pinned

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = pinned_bytes(torch.Size(shape).numel() * dtype.itemsize)
        self.budget.take(size)
        pinned = torch.empty(shape, dtype=dtype, pin_memory=True)
        weakref.finalize(pinned, self.budget.give, size)
        return pinned


def _allocate_pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def _fits_buffer(leaf: Any) -> bool:
    """Return whether `leaf` is a plain tensor in pageable memory; a tensor subclass must pin itself."""
    return (
        type(leaf) is torch.Tensor
        and _is_strided_on_host(leaf)
        and not leaf.is_quantized
        and leaf.numel() > 0
        and not leaf.is_pinned()
    )


def _pins_itself(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return _is_strided_on_host(leaf) and not _fits_buffer(leaf) and leaf.numel() > 0 and not leaf.is_pinned()
    return moves_itself(leaf)


def _is_strided_on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout is torch.strided


def _can_stack_pinned(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and _is_strided_on_host(tensor) and not tensor.requires_grad


def _copy_into(tensor: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    # Keep the strides that `to()` would give: a channels-last image stays channels-last.
    strides = torch.empty_like(tensor, device="meta").stride()
    target = buffer[: tensor.numel() * tensor.element_size()].view(tensor.dtype)
    return target.as_strided(tensor.shape, strides).copy_(tensor)
