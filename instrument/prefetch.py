"""A loader that copies batch N+1 to the GPU on its own stream while batch N computes.

The background thread loads a batch, records the loader's state after it, pins it and issues its copy.
"""

from __future__ import annotations

import copy
import sys
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, repeat
from typing import Any

import torch
from torch.utils.data import DataLoader

from instrument.background import Background, BackgroundThread
from instrument.checkpoint.states import random_state_kept
from instrument.devices import current_device, usable_device
from instrument.errors import ConfigError, InstrumentError
from instrument.memory import format_bytes
from instrument.pinned import bytes_to_pin, pin
from instrument.ranges import COPY, DATA_LOAD, annotate, phase
from instrument.streams import Event, Stream, record_stream
from instrument.trees import leaves, map_leaves, moves_itself, nbytes, tensors

State = Callable[[], Any]
_POLL_SECONDS = 0.0005


def loader_state(loader: Any) -> State | None:
    """Return a function that returns the current state of `loader`, or None if it has no `state_dict()`.

    A loader whose `state_dict()` raises an exception still yields its batches; the function raises InstrumentError.
    """
    if not hasattr(loader, "state_dict"):
        return None
    try:
        state = copy.deepcopy(loader.state_dict())  # a loader can return its own mutable objects
    except Exception as raised:
        return partial(_raise_unknown_state, type(loader).__name__, raised)
    return partial(copy.deepcopy, state)


def _raise_unknown_state(loader: str, error: Exception) -> None:
    raise InstrumentError(
        f"the state of {loader} after the last batch is unknown: its state_dict() raised {type(error).__name__}: "
        f"{error}; iterate over the loader directly"
    ) from error


def open_resumed(loader: Any) -> None:
    """Let a loader whose state was loaded open its iteration now, and leave the global random generators as they are.

    A loader draws seeds from torch's generator when an iteration begins. In a run without a stop these draws came
    before the state was saved, so they must not come again after it was restored. StatefulDataLoader opens its
    iteration when its state is read.
    """
    with random_state_kept():
        loader_state(loader)


@dataclass(frozen=True, slots=True)
class HostBatch:
    """A batch of the loader, and the loader's state after it; None if it has none."""

    tree: Any
    state: State | None


@dataclass(frozen=True, slots=True)
class CopiedBatch:
    """A batch whose copy has been issued on the copy stream, between the events `start` and `ready`."""

    tree: Any
    start: Event | None
    ready: Event
    nbytes: int
    state: State | None


class Copier:
    """Loads batches, pins them and issues their copies; runs on the background thread.

    The loader runs with the stream that is current here, as in plain iteration.

    Args:
        loader: the loader whose state is recorded.
        device: the target device.
        streams: the copy streams, used in turn.
        slots: how many batches can be in pinned memory.
        budget_bytes: how many bytes of it.
        timing: whether the events of a copy measure time.
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device,
        streams: Sequence[Stream],
        slots: int,
        budget_bytes: int,
        *,
        timing: bool,
    ) -> None:
        self._loader, self.device, self._streams = loader, device, cycle(streams)
        self._slots, self._budget, self._timing = slots, budget_bytes, timing
        self._copying: deque[tuple[int, Any, Event]] = deque()  # the memory stays while it is read
        self._caller = Stream.current(device)

    def load(self, source: Iterator[Any]) -> HostBatch:
        """Take the next batch of `source`, with the stream of the iteration as current stream."""
        with current_device(self.device), self._caller, annotate("load"):
            batch = next(source)
            return HostBatch(batch, loader_state(self._loader))

    def copy(self, batch: HostBatch) -> CopiedBatch:
        """Pin a batch and issue its copy, once earlier ones have left room for it."""
        with current_device(self.device):
            with annotate("pin"):
                size = bytes_to_pin(batch.tree)
                self._wait_for_room(size)
                pinned = pin(batch.tree)
            with phase(COPY):
                copied = self._issue_copy(pinned, batch.state)
            self._copying.append((size, pinned, copied.ready))
            return copied

    def _wait_for_room(self, size: int) -> None:
        """Wait until a batch of `size` bytes fits. Polling costs less than a call that a capture shows as a wait."""
        if size > self._budget:
            raise InstrumentError(
                f"pinned memory: one batch takes {format_bytes(size)}, more than the budget of "
                f"{format_bytes(self._budget)}: raise the budget, or use a smaller batch"
            )
        while self._copying:
            is_full = len(self._copying) == self._slots or sum(row[0] for row in self._copying) + size > self._budget
            if self._copying[0][2].query():
                self._copying.popleft()
            elif is_full:
                time.sleep(_POLL_SECONDS)
            else:
                return

    def copy_leaf(self, leaf: Any, target: torch.Tensor | None = None) -> Any:
        """Copy `leaf` to the device on the current stream, into `target` if it is given."""
        return leaf.to(self.device, non_blocking=True) if target is None else target.copy_(leaf, non_blocking=True)

    def copy_late_leaves(self, tree: Any) -> Any:
        """Copy on the current stream what cannot be copied ahead: sparse tensors, and objects that move themselves."""
        return map_leaves(tree, lambda leaf: self.copy_leaf(leaf) if _is_copied_late(leaf) else leaf)

    def _allocate_target(self, leaf: Any) -> torch.Tensor | None:
        """Return device memory for a plain host tensor, or None for any other leaf."""
        if type(leaf) is not torch.Tensor or leaf.device.type != "cpu" or leaf.is_quantized:
            return None
        return torch.empty_like(leaf, device=self.device)

    def _issue_copy(self, tree: Any, state: State | None) -> CopiedBatch:
        stream = next(self._streams)
        if any(tensor.is_cuda for tensor in tensors(tree)):
            stream.wait(self._caller)  # the loader computed these tensors there
        with stream, torch.no_grad():
            # Allocate first, so that only copies lie between the two events.
            targets = iter([self._allocate_target(leaf) for leaf in leaves(tree) if _is_copied_ahead(leaf)])
            start = stream.record(timing=True) if self._timing else None
            copies = map_leaves(
                tree, lambda leaf: self.copy_leaf(leaf, next(targets)) if _is_copied_ahead(leaf) else leaf
            )
            ready = stream.record(timing=self._timing)
        size = sum(
            nbytes(leaf) for leaf in leaves(tree) if _is_copied_ahead(leaf) and not getattr(leaf, "is_cuda", False)
        )
        return CopiedBatch(copies, start, ready, size, state)


def is_movable(leaf: Any) -> bool:
    """Return whether `leaf` is a tensor or an object that moves itself."""
    return isinstance(leaf, torch.Tensor) or moves_itself(leaf)


def _is_copied_ahead(leaf: Any) -> bool:
    """Return whether `record_stream` can report to torch's allocator that another stream uses the memory of `leaf`."""
    if isinstance(leaf, torch.Tensor):
        return leaf.layout is torch.strided
    return moves_itself(leaf) and hasattr(leaf, "record_stream")


def _is_copied_late(leaf: Any) -> bool:
    return is_movable(leaf) and not _is_copied_ahead(leaf)


OnCopy = Callable[[Event, Event, int], None]


class PrefetchLoader:
    """Iterates over the batches of a loader on a device, and copies each batch ahead of its use.

        loader = PrefetchLoader(DataLoader(dataset, batch_size=32), "cuda")
        for batch in loader:
            loss = model(batch["x"], batch["y"])
            loss.backward()

    A background thread takes batches from `loader`, copies them into pinned memory and issues their copies on a
    separate stream. When a batch is requested, the current stream waits for its copy; the host does not wait. Values,
    order, exceptions and `len()` are those of `loader`. Without a GPU, it iterates over `loader` without a thread.

    After `break` the thread ends when the loader returns; a loader with a state waits for it before the next iteration.
    With a GPU, a loader that is an iterator itself, such as a generator, loses the batches loaded ahead then. The
    loader runs on the thread with the CUDA stream that was current when the iteration began.

    A batch is any nested tree of tensors (see `instrument.trees`). Sparse tensors, and objects that have `to()` but no
    `record_stream()`, are copied on the current stream when the batch is requested. A loader that yields pinned tensors
    must not write to them again.

    `state_dict()` of a stateful loader, such as torchdata's StatefulDataLoader, is the state after the last batch
    returned, even if the loader is ahead. It copies the loader's state once per batch. `PrefetchLoader` passes any
    other attribute on to `loader`, which counts what is loaded ahead.

    With accelerate, prepare the loader first: `PrefetchLoader(accelerator.prepare(loader), ...)`. `prepare` returns a
    PrefetchLoader unchanged, so that each process would read all data; the loader warns about it.

    Each batch has two NVTX ranges: `data_load`, the wait for it, and `h2d`, its copy, on the background thread.

    Args:
        loader: any iterable of batches, such as a DataLoader.
        device: the device that batches are copied to.
        depth: how many copied batches can wait for the consumer, at least 1. More than 1 only helps if loading times
            vary.
        budget_bytes: the limit of pinned memory, in bytes. Each iteration has up to depth + 2 batches there.
        stream: the copy stream, or several that are used in turn; None for a new one.
        on_copy: called for each batch when it is returned, with the events before and after its copy and the copied
            bytes. The events have timing, but may not be done. Not called without a GPU.

    Raises:
        ConfigError: `depth` is less than 1, or `budget_bytes` is not positive.
        InstrumentError: (while iterating) the budget is too small for one batch.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: torch.device | str,
        *,
        depth: int = 1,
        budget_bytes: int = 2 << 30,
        stream: Stream | Sequence[Stream] | None = None,
        on_copy: OnCopy | None = None,
    ) -> None:
        if depth < 1:
            raise ConfigError(f"invalid depth {depth}: use 1 or more, or do not prefetch")
        if budget_bytes <= 0:
            raise ConfigError(f"invalid budget of {budget_bytes} bytes: use at least the size of one batch")
        self.loader, self.depth, self.on_copy = loader, depth, on_copy
        self.device = _with_index(usable_device(device))
        self.streams = (stream,) if isinstance(stream, Stream) else tuple(stream or ())
        self.streams = self.streams or (Stream.create("copy", self.device),)
        self.budget_bytes = budget_bytes
        self._open: weakref.WeakSet[_PrefetchIterator | _DirectIterator] = weakref.WeakSet()
        self._readers: weakref.WeakSet[BackgroundThread[Any, Any]] = weakref.WeakSet()
        self._state: State | None = None  # None while nothing is loaded ahead: the loader's own state is right
        self._is_resumed = False  # whether the next iteration continues the epoch of a state that was loaded
        if hasattr(loader, "state_dict"):  # others must not seem to have a state: Lightning looks for it in the class
            self.state_dict, self.load_state_dict = self._state_after_last_batch, self._load_state

    def __iter__(self) -> Iterator[Any]:
        _warn_if_unprepared(self.loader)
        if hasattr(self.loader, "state_dict"):
            for reader in [reader for reader in self._readers if reader.stopped]:
                reader.join()  # it may still be inside the loader, whose state the next iteration shares
        self._state = None
        if self._is_resumed:
            self._is_resumed = False
            open_resumed(self.loader)
        if self.device.type != "cuda":
            return _DirectIterator(self)
        timing = self.on_copy is not None
        slots = self.depth + 2
        copier = Copier(self.loader, self.device, self.streams, slots, self.budget_bytes, timing=timing)
        return _PrefetchIterator(self, copier)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # raises TypeError for an iterable without a length

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet, for example while the object is copied
            raise AttributeError(name)
        return getattr(self.loader, name)

    def _state_after_last_batch(self) -> Any:
        """Return the loader's state after the last batch returned.

        Raises:
            InstrumentError: the loader's `state_dict()` failed.
        """
        return self.loader.state_dict() if self._state is None else self._state()  # type: ignore[attr-defined]

    def _load_state(self, state_dict: Any) -> None:
        """Set the loader's state for the next iteration and drop batches loaded ahead."""
        self.close()
        self._state = None
        self.loader.load_state_dict(state_dict)  # type: ignore[attr-defined]
        self._is_resumed = True

    def close(self) -> None:
        """End all iterations and their threads. Also called at the end of a `with` block."""
        for iterator in list(self._open):
            iterator.close()

    def __enter__(self) -> PrefetchLoader:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


class _PrefetchIterator(Iterator[Any]):
    """One iteration whose copies run ahead. `next` hands a batch over to the current stream."""

    def __init__(self, owner: PrefetchLoader, copier: Copier) -> None:
        self._owner, self._copier = owner, copier
        # On this thread, as in plain iteration: it may fork workers and draw a seed.
        source = iter(owner.loader)
        owner._state = loader_state(owner.loader)
        self._ended = False
        # Unlike a generator, `map` continues after an exception.
        ahead = map(copier.load, repeat(source))
        self._batches = Background(ahead, copier.copy, depth=owner.depth, readers=owner._readers)
        owner._open.add(self)

    def __next__(self) -> Any:
        owner = self._owner
        with phase(DATA_LOAD):
            try:
                copied = next(self._batches)
            except StopIteration:
                self._update_state_at_end()
                raise
        tree = record_stream(copied.tree, ready=copied.ready, to=Stream.current(owner.device))
        if owner.on_copy is not None and copied.start is not None:
            owner.on_copy(copied.start, copied.ready, copied.nbytes)
        owner._state = copied.state
        return self._copier.copy_late_leaves(tree)

    def close(self) -> None:
        """End the thread and drop the batches that it has loaded."""
        self._ended = True
        self._batches.close()

    def _update_state_at_end(self) -> None:
        """Take the loader's state again: many loaders know only now that the epoch is over."""
        if not self._ended:
            self._ended = True
            self._owner._state = loader_state(self._owner.loader)


class _DirectIterator(Iterator[Any]):
    """One iteration without a GPU: no thread, nothing loaded ahead."""

    def __init__(self, owner: PrefetchLoader) -> None:
        self._owner, self._source = owner, iter(owner.loader)
        owner._open.add(self)

    def close(self) -> None:
        """End the iteration, as with a GPU."""
        self._source = iter(())

    def __next__(self) -> Any:
        owner = self._owner
        with phase(DATA_LOAD):
            batch = next(self._source)
        with phase(COPY):
            return map_leaves(batch, lambda leaf: leaf.to(owner.device) if is_movable(leaf) else leaf)


def _warn_if_unprepared(loader: Any) -> None:
    """Warn if the program uses accelerate, and a DataLoader is wrapped before it is prepared."""
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is None or not isinstance(loader, DataLoader) or not accelerate.PartialState._shared_state:
        return
    if not type(loader).__module__.startswith("accelerate.") and not hasattr(loader, "_is_accelerate_prepared"):
        warnings.warn(
            "accelerate has not prepared the loader in this PrefetchLoader, so each process reads all of it: "
            "use PrefetchLoader(accelerator.prepare(loader), accelerator.device)",
            stacklevel=3,
        )


def _with_index(device: torch.device) -> torch.device:
    """Return "cuda" with the index of this thread's current GPU; the background thread may have another one."""
    if str(device) != "cuda":
        return device
    return torch.device("cuda", torch.cuda.current_device())
