"""The double-buffered loader: batch N+1 is copied on its own stream while batch N computes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch

from instrument.background import Background
from instrument.errors import ConfigError
from instrument.loader_state import LoaderState, Place, state_of
from instrument.pinned import Lease, PinnedBudget, PinnedRing
from instrument.ranges import COPY, DATA_LOAD, annotate, phase
from instrument.streams import Event, Stream, hand_over
from instrument.trees import leaves, map_leaves, moves_itself, nbytes, tensors

OnCopy = Callable[[Event, Event, int], None]


class PrefetchLoader:
    """Iterates over the batches of `loader` on `device`, each copied there ahead of its use.

        for batch in PrefetchLoader(DataLoader(dataset, batch_size=32), "cuda"):
            model(batch).backward()

    A background thread takes host batches, puts them into pinned memory and issues their copies on a stream
    of their own; the stream that is current when a batch is asked for waits for the copy, the host does not.
    Values, order, exceptions and `len()` are those of `loader`. Without a GPU it is plain iteration.

    A batch is any nested tree (`instrument.trees`). A sparse tensor, and an object that moves itself without
    having `record_stream()`, is copied by the stream that uses it, when it is asked for. A loader that yields
    pinned memory must not write into it again.

    `state_dict()` of a stateful loader, such as torchdata's StatefulDataLoader, is the state after the last batch
    that was handed out, whatever was loaded ahead. For this the loader's state is copied with each batch.

    Each batch is a `data_load` range (the wait for it) on the consumer's thread, and an `h2d` range (its
    copy) on the background thread. Further attributes are those of `loader`.

    Args:
        loader: any iterable of batches; a DataLoader with any settings.
        device: where the batches go.
        depth: how many copied batches may wait for the consumer; more helps only against an uneven loader.
        budget_bytes: the most pinned memory; depth + 2 batches are in it at most.
        stream: the stream that copies, or several that take turns; a new one where None.
        on_copy: told of each copy when its batch is handed out: the events before and after it, made for
            `milliseconds_since` and not waited for, and its bytes. Not called without a GPU.
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
            raise ConfigError(f"depth: {depth} batches ahead are none: use 1 or more, or do not prefetch")
        self.loader, self.depth, self.on_copy = loader, depth, on_copy
        self.device = _with_index(torch.device(device))
        self.streams = (stream,) if isinstance(stream, Stream) else tuple(stream or ())
        self.streams = self.streams or (Stream.create("copy", self.device),)
        self.ring = PinnedRing(depth + 2, PinnedBudget(budget_bytes))
        self._open: weakref.WeakSet[_Ahead] = weakref.WeakSet()
        self._position: Any = None
        self._state: LoaderState | None = None  # None while nothing is ahead: then the loader's own is right

    def __iter__(self) -> Iterator[Any]:
        self._rewind()
        self._state = None
        if self.device.type != "cuda":
            return _Plain(self)
        return _Ahead(self, Copier(self))

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # an iterable without a length says so itself

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet, as while a copy is being made
            raise AttributeError(name)
        return getattr(self.loader, name)

    @property
    def position(self) -> Any:
        """Where the loader stood after the last batch that was handed out: itself, it is ahead of that."""
        return getattr(self.loader, "position", None) if self._position is None else self._position

    def seek(self, position: Any) -> None:
        """Start the next iteration at `position`; raises where the loader has no `seek`."""
        self.loader.seek(position)  # type: ignore[attr-defined]
        self._position = position

    @property
    def state_dict(self) -> Callable[[], Any]:
        """Return the loader's state after the last batch handed out; raise InstrumentError where it is unknown."""
        own: Callable[[], Any] = self.loader.state_dict  # type: ignore[attr-defined]
        return own if self._state is None else self._state.value

    @property
    def load_state_dict(self) -> Callable[[Any], None]:
        """Go on from a state with the next iteration, and drop what was loaded ahead."""
        load: Callable[[Any], object] = self.loader.load_state_dict  # type: ignore[attr-defined]

        def load_state_dict(state_dict: Any) -> None:
            self.close()
            self._position = self._state = None
            load(state_dict)

        return load_state_dict

    def close(self) -> None:
        """End all iterations and their threads."""
        for batches in list(self._open):
            batches.close()

    def __enter__(self) -> PrefetchLoader:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _rewind(self) -> None:
        """Take back what an abandoned iteration had loaded ahead and not handed out."""
        if not (hasattr(self.loader, "seek") and hasattr(self.loader, "position")):
            return
        if self._position is not None and self._position != self.loader.position:
            self.close()
            self.loader.seek(self._position)
        self._position = self.loader.position


@dataclass(frozen=True, slots=True)
class Pinned:
    """A batch in pinned memory, and where the loader stood after it."""

    lease: Lease
    place: Place


@dataclass(frozen=True, slots=True)
class Copied:
    """A batch whose copy was issued on the copy stream, between two events."""

    tree: Any
    start: Event | None
    ready: Event
    nbytes: int
    place: Place


class Copier:
    """What the background thread does with a host batch: puts it into pinned memory, and issues its copy."""

    def __init__(self, loader: PrefetchLoader) -> None:
        self.device, self._streams = loader.device, cycle(loader.streams)
        self._loader, self._ring, self._timing = loader.loader, loader.ring, loader.on_copy is not None

    def pin(self, source: Iterator[Any]) -> Pinned:
        """Take the next batch of `source` into pinned memory."""
        with _on(self.device):
            with annotate("load"):
                batch = next(source)
            place = Place.current(self._loader)
            with annotate("pin"):
                return Pinned(self._ring.pin(batch), place)

    def copy(self, pinned: Pinned) -> Copied:
        """Issue the copy of a pinned batch, and leave its memory to the ring once that is done."""
        try:
            with phase(COPY), _on(self.device):
                copied = self._issued(pinned)
        except BaseException:
            self._ring.release(pinned.lease)
            raise
        self._ring.release(pinned.lease, copied.ready)
        return copied

    def moved(self, leaf: Any, room: torch.Tensor | None = None) -> Any:
        """Return `leaf` on the device, in `room` where there is one; the copy runs on the current stream."""
        return leaf.to(self.device, non_blocking=True) if room is None else room.copy_(leaf, non_blocking=True)

    def _room(self, leaf: Any) -> torch.Tensor | None:
        """Return memory for a plain tensor that is on the host; what is there, or moves itself, needs none."""
        if type(leaf) is not torch.Tensor or leaf.device.type != "cpu" or leaf.is_quantized:
            return None
        return torch.empty_like(leaf, device=self.device)

    def _issued(self, pinned: Pinned) -> Copied:
        tree, stream = pinned.lease.tree, next(self._streams)
        if any(tensor.is_cuda for tensor in tensors(tree)):
            stream.wait(Stream.current(self.device))  # the loader computed these there
        with stream, torch.no_grad():
            # Memory first, so that nothing but copies lies between the events.
            rooms = iter([self._room(leaf) for leaf in leaves(tree) if _crosses_streams(leaf)])
            start = stream.record(timing=True) if self._timing else None
            moved = map_leaves(tree, lambda leaf: self.moved(leaf, next(rooms)) if _crosses_streams(leaf) else leaf)
            ready = stream.record(timing=self._timing)
        size = sum(nbytes(leaf) for leaf in leaves(tree) if _crosses_streams(leaf) and not _is_there(leaf))
        return Copied(moved, start, ready, size, pinned.place)


class _Ahead(Iterator[Any]):
    """One iteration with copies running ahead; the next batch is handed to the stream that asks for it."""

    def __init__(self, of: PrefetchLoader, copier: Copier) -> None:
        self._of, self._copier = of, copier
        # Here and not on the thread: it may fork workers and draw a seed, in the order of plain iteration.
        source = iter(of.loader)
        of._state = state_of(of.loader)
        self._ended = False
        self._batches = Background(_Pinning(copier, source), copier.copy, depth=of.depth)
        of._open.add(self)

    def __next__(self) -> Any:
        with phase(DATA_LOAD):
            try:
                copied = next(self._batches)
            except StopIteration:
                self._end()
                raise
        tree = hand_over(copied.tree, ready=copied.ready, to=Stream.current(self._of.device))
        if self._of.on_copy is not None and copied.start is not None:
            self._of.on_copy(copied.start, copied.ready, copied.nbytes)
        self._of._position, self._of._state = copied.place.position, copied.place.state
        return map_leaves(tree, lambda leaf: self._copier.moved(leaf) if _copied_late(leaf) else leaf)

    def close(self) -> None:
        """End the thread; the batches it had ready are dropped."""
        self._ended = True
        self._batches.close()

    def _end(self) -> None:
        """Take the state after the last batch again: many loaders know only now that an epoch is over."""
        if not self._ended:
            self._ended = True
            self._of._state = state_of(self._of.loader)


class _Pinning(Iterator[Pinned]):
    """Goes on after an exception, which a generator would not."""

    def __init__(self, copier: Copier, source: Iterator[Any]) -> None:
        self._copier, self._source = copier, source

    def __next__(self) -> Pinned:
        return self._copier.pin(self._source)


class _Plain(Iterator[Any]):
    """One iteration without a GPU: no thread, nothing ahead."""

    def __init__(self, of: PrefetchLoader) -> None:
        self._of, self._source = of, iter(of.loader)

    def __next__(self) -> Any:
        with phase(DATA_LOAD):
            batch = next(self._source)
        self._of._position = getattr(self._of.loader, "position", None)
        with phase(COPY):
            return map_leaves(batch, lambda leaf: leaf.to(self._of.device) if _is_movable(leaf) else leaf)


def _is_movable(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) or moves_itself(leaf)


def _crosses_streams(leaf: Any) -> bool:
    """Whether `hand_over` can tell the allocator that another stream uses the memory of `leaf`."""
    if isinstance(leaf, torch.Tensor):
        return leaf.layout is torch.strided
    return moves_itself(leaf) and hasattr(leaf, "record_stream")


def _copied_late(leaf: Any) -> bool:
    return _is_movable(leaf) and not _crosses_streams(leaf)


def _is_there(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_cuda


def _on(device: torch.device) -> AbstractContextManager[Any]:
    # A thread starts on the first GPU, which is another rank's.
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _with_index(device: torch.device) -> torch.device:
    """What "cuda" means here and now: on the thread it could mean another GPU."""
    if str(device) != "cuda":
        return device
    return torch.device("cuda", torch.cuda.current_device())
