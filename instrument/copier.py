"""The background work of `PrefetchLoader`: load a batch, record the loader's state after it, pin it, issue its copy."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch

from instrument.devices import current_device
from instrument.errors import InstrumentError
from instrument.pinned import PinnedRing
from instrument.ranges import COPY, annotate, phase
from instrument.streams import Event, Stream
from instrument.trees import leaves, map_leaves, moves_itself, nbytes, tensors


class LoaderState:
    """A copy of a loader's `state_dict()`, or the error that it raised.

    A loader whose state cannot be taken still yields its batches. `value` raises the error when the state is needed.
    """

    __slots__ = ("_error", "_loader", "_value")

    def __init__(self, loader: Any) -> None:
        self._loader, self._value = type(loader).__name__, None
        self._error: Exception | None = None
        try:
            self._value = copy.deepcopy(loader.state_dict())  # a loader can return its own mutable objects
        except Exception as error:
            self._error = error

    def value(self) -> Any:
        """Return a copy of the state.

        Raises:
            InstrumentError: `state_dict()` raised an exception.
        """
        if self._error is not None:
            raise InstrumentError(
                f"the state of {self._loader} after the last batch is unknown: its state_dict() raised "
                f"{type(self._error).__name__}: {self._error}; resume with `position`, or iterate over the loader "
                "directly"
            ) from self._error
        return copy.deepcopy(self._value)


def loader_state(loader: Any) -> LoaderState | None:
    """Return the current state of `loader`, or None if it has no `state_dict()`."""
    return LoaderState(loader) if hasattr(loader, "state_dict") else None


@dataclass(frozen=True, slots=True)
class LoaderPosition:
    """A loader's `position` and state after a batch; each is None if the loader has none."""

    position: Any
    state: LoaderState | None

    @classmethod
    def current(cls, loader: Any) -> LoaderPosition:
        """Return the current position of `loader`, which must not run at the same time."""
        return cls(getattr(loader, "position", None), loader_state(loader))


@dataclass(frozen=True, slots=True)
class HostBatch:
    """A batch of the loader, and the loader's position after it."""

    tree: Any
    position: LoaderPosition


@dataclass(frozen=True, slots=True)
class CopiedBatch:
    """A batch whose copy has been issued on the copy stream, between the events `start` and `ready`."""

    tree: Any
    start: Event | None
    ready: Event
    nbytes: int
    position: LoaderPosition


class Copier:
    """Loads batches, pins them and issues their copies; runs on the background thread.

    The loader runs with the stream that is current here, as in plain iteration.

    Args:
        loader: the loader whose position is recorded.
        device: the target device.
        streams: the copy streams, used in turn.
        ring: the pinned buffers.
        timing: whether the events of a copy measure time.
    """

    def __init__(
        self, loader: Any, device: torch.device, streams: Sequence[Stream], ring: PinnedRing, *, timing: bool
    ) -> None:
        self._loader, self.device, self._streams = loader, device, cycle(streams)
        self._ring, self._timing = ring, timing
        self._caller = Stream.current(device)

    def load(self, source: Iterator[Any]) -> HostBatch:
        """Take the next batch of `source`, with the stream of the iteration as current stream."""
        with current_device(self.device), self._caller, annotate("load"):
            batch = next(source)
            return HostBatch(batch, LoaderPosition.current(self._loader))

    def copy(self, batch: HostBatch) -> CopiedBatch:
        """Pin a batch and issue its copy; the ring reuses its memory once the copy is done."""
        with current_device(self.device):
            with annotate("pin"):
                lease = self._ring.pin(batch.tree)
            try:
                with phase(COPY):
                    copied = self._issue_copy(lease.tree, batch.position)
            except BaseException:
                self._ring.release(lease)
                raise
            self._ring.release(lease, copied.ready)
            return copied

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

    def _issue_copy(self, tree: Any, position: LoaderPosition) -> CopiedBatch:
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
        size = sum(nbytes(leaf) for leaf in leaves(tree) if _is_copied_ahead(leaf) and not _is_on_gpu(leaf))
        return CopiedBatch(copies, start, ready, size, position)


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


def _is_on_gpu(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_cuda
