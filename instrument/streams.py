"""Named streams and events, the same with and without a GPU, and the one place where a tensor crosses streams.

Without a GPU everything is done when its call returns: a stream is a name, and an event is always done.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from instrument.errors import ConfigError
from instrument.trees import leaves

Tree = TypeVar("Tree")

_cuda: Any = torch.cuda  # torch leaves streams and events half typed
POOL = 32  # torch hands out so many streams of a priority in turn, and then the first one again


class Event:
    """A point in a stream that others can wait for, ask about and time.

    Args:
        device: the device whose streams it marks; any but a CUDA one gives the form that is always done.
        timing: whether `milliseconds_since` will be asked for; without it an event costs less.
    """

    __slots__ = ("_recorded_ns", "_timing", "cuda", "device")

    def __init__(self, device: torch.device | str, *, timing: bool = False) -> None:
        self.device = torch.device(device)
        self.cuda: Any = _cuda.Event(enable_timing=timing) if self.device.type == "cuda" else None
        self._timing = timing
        self._recorded_ns: int | None = None

    def record(self, stream: Stream | None = None) -> Event:
        """Mark what `stream` (the current one where None) holds so far; return the event itself."""
        self._recorded_ns = time.perf_counter_ns()
        if self.cuda is not None:
            self.cuda.record(_cuda_of(stream, self.device))
        return self

    def query(self) -> bool:
        """Return whether all work before the event is done, without waiting."""
        return self.cuda is None or bool(self.cuda.query())

    def wait(self, stream: Stream | None = None) -> None:
        """Make `stream` (the current one where None) wait for the event; the host does not wait."""
        if self.cuda is not None:
            self.cuda.wait(_cuda_of(stream, self.device))

    def synchronize(self) -> None:
        """Make the host wait for the event."""
        if self.cuda is not None:
            self.cuda.synchronize()

    def milliseconds_since(self, earlier: Event) -> float:
        """Return the time from `earlier` to this event, in ms: of the device, or of the host without a GPU.

        Both must have been made with `timing` and recorded, which raises ValueError otherwise, and be done,
        which raises RuntimeError otherwise: ask `query` first.
        """
        start, end = earlier._timed_ns(), self._timed_ns()
        if self.cuda is not None and earlier.cuda is not None:
            return float(earlier.cuda.elapsed_time(self.cuda))
        return (end - start) / 1e6

    def _timed_ns(self) -> int:
        if not self._timing or self._recorded_ns is None:
            raise ValueError("an event is timed when it was made with timing=True and has been recorded")
        return self._recorded_ns


class Stream:
    """A stream with a name; `with stream:` makes it the one that the thread's work goes to.

    Args:
        name: what it is for, such as "copy".
        device: where it is.
        cuda: the CUDA stream behind it; None without a GPU.
    """

    __slots__ = ("__weakref__", "cuda", "device", "name")

    def __init__(self, name: str, device: torch.device | str, cuda: torch.cuda.Stream | None = None) -> None:
        self.name, self.device, self.cuda = name, torch.device(device), cuda

    @classmethod
    def create(cls, name: str, device: torch.device | str, *, priority: int = 0) -> Stream:
        """Return a new stream on `device`; a lower `priority` number goes first (-1 before 0).

        It shares no CUDA stream with another one made here that is still in use: work on one stream never
        runs side by side, and a copy issued on a stream that records a graph ends the recording.
        """
        device = torch.device(device)
        if device.type != "cuda":
            return cls(name, device)
        with _creating:
            made = cls(name, device, _unused(device, priority))
            _created.add(made)
        return made

    @classmethod
    def current(cls, device: torch.device | str) -> Stream:
        """Return the stream that this thread's work on `device` goes to now, under the name "current"."""
        device = torch.device(device)
        return cls("current", device, torch.cuda.current_stream(device) if device.type == "cuda" else None)

    def __enter__(self) -> Stream:
        context: AbstractContextManager[Any] = nullcontext()
        if self.cuda is not None:
            context = _cuda.stream(self.cuda)
        context.__enter__()
        _entered.contexts.append(context)
        return self

    def __exit__(self, *raised: Any) -> None:
        _entered.contexts.pop().__exit__(*raised)

    def record(self, *, timing: bool = False) -> Event:
        """Return a new event after all that the stream holds so far."""
        return Event(self.device, timing=timing).record(self)

    def wait(self, other: Event | Stream) -> None:
        """Make the stream wait for an event, or for all that another stream holds; the host does not wait."""
        (other.record() if isinstance(other, Stream) else other).wait(self)

    def query(self) -> bool:
        """Return whether all work of the stream is done, without waiting."""
        return self.cuda is None or bool(self.cuda.query())

    def synchronize(self) -> None:
        """Make the host wait for all work of the stream."""
        if self.cuda is not None:
            self.cuda.synchronize()

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {str(self.device)!r}, {self.cuda})"


class Streams:
    """The named streams of one device: `Streams("cuda", copy=-1, compute=0)["copy"]`.

    Args:
        device: where they are.
        priorities: a name and a priority each; a lower number goes first. Raises ConfigError for a priority
            that the device does not have.
    """

    __slots__ = ("_streams", "device")

    def __init__(self, device: torch.device | str, **priorities: int) -> None:
        self.device = torch.device(device)
        for name, priority in priorities.items():
            _check_priority(self.device, name, priority)
        self._streams = MappingProxyType(
            {name: Stream.create(name, self.device, priority=priority) for name, priority in priorities.items()}
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which they were given."""
        return tuple(self._streams)

    @property
    def current(self) -> Stream:
        """The stream that this thread's work goes to now."""
        return Stream.current(self.device)

    def __getitem__(self, name: str) -> Stream:
        if name not in self._streams:
            raise KeyError(f"no stream is named {name!r}: there are {', '.join(self.names) or 'none'}")
        return self._streams[name]

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams.values())

    def __len__(self) -> int:
        return len(self._streams)


def hand_over(tree: Tree, *, ready: Event, to: Stream) -> Tree:
    """Give what one stream made to another: the one place where a tensor crosses streams.

    `to` waits for `ready`, so that it never reads what is not there yet; and each tensor in `tree` is
    recorded as used by `to`, so that its memory is not given away while `to` still reads it. The host does
    not wait. An object that moves itself takes part where it has `record_stream()`, as tensors do.

    Args:
        tree: any nested batch, see `instrument.trees`.
        ready: recorded on the making stream after the last write to `tree`.
        to: the stream that uses `tree` from now on.

    Returns:
        `tree` itself.
    """
    to.wait(ready)
    if to.cuda is not None:
        for leaf in leaves(tree):
            if isinstance(leaf, torch.Tensor) and not leaf.is_cuda:
                continue
            if hasattr(leaf, "record_stream"):
                leaf.record_stream(to.cuda)
    return tree


class _Entered(threading.local):
    """The contexts this thread is inside of: one stream may be entered by several threads, and again."""

    def __init__(self) -> None:
        self.contexts: list[AbstractContextManager[Any]] = []


_entered = _Entered()
_creating = threading.Lock()
_created: weakref.WeakSet[Stream] = weakref.WeakSet()


def _unused(device: torch.device, priority: int) -> torch.cuda.Stream:
    """Return a stream of torch's pool that no Stream has; the next in turn where all are taken."""
    taken = {made.cuda for made in list(_created)}
    for _ in range(POOL):
        offered: torch.cuda.Stream = _cuda.Stream(device, priority=priority)
        if offered not in taken:
            break
    return offered


def _cuda_of(stream: Stream | None, device: torch.device) -> torch.cuda.Stream:
    if stream is None:
        return torch.cuda.current_stream(device)
    if stream.cuda is None:
        raise ValueError(f"{stream} has no GPU behind it, and the event is one of {device}")
    return stream.cuda


def _check_priority(device: torch.device, name: str, priority: int) -> None:
    if device.type != "cuda":
        return
    lowest, highest = _cuda.Stream.priority_range()  # such as 0, -5: a lower number goes first
    if not highest <= priority <= lowest:
        raise ConfigError(f"stream {name}: priority {priority} is not one of {device}: use {highest} to {lowest}")
