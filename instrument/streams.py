"""Named CUDA streams and events that also work without a GPU, and `record_stream`, which moves tensors between streams.

Without a GPU, work is done when its call returns: a stream is only a name, and an event is always done.
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

from instrument.devices import usable_device
from instrument.errors import ConfigError
from instrument.trees import dense_parts, leaves

Tree = TypeVar("Tree")

_cuda: Any = torch.cuda  # torch's streams and events are only partly typed
TORCH_POOL_STREAMS = 32  # torch has this many streams per priority and returns them in turn


class Event:
    """A point in a stream that the host and other streams can wait for.

        start = Event("cuda", timing=True).record()
        model(batch)
        end = Event("cuda", timing=True).record()
        end.synchronize()
        print(end.milliseconds_since(start))

    Args:
        device: the device of the stream. On any device but a CUDA device, an event is always done.
        timing: whether the event measures time for `milliseconds_since`. Events without timing cost less.
    """

    __slots__ = ("_recorded_ns", "_timing", "cuda", "device")

    def __init__(self, device: torch.device | str, *, timing: bool = False) -> None:
        self.device = usable_device(device)
        self.cuda: Any = _cuda.Event(enable_timing=timing) if self.device.type == "cuda" else None
        self._timing = timing
        self._recorded_ns: int | None = None

    def record(self, stream: Stream | None = None) -> Event:
        """Record the event after all work in `stream` (None: the current stream) so far; return the event."""
        self._recorded_ns = time.perf_counter_ns()
        if self.cuda is not None:
            self.cuda.record(_cuda_stream(stream, self.device))
        return self

    def query(self) -> bool:
        """Return whether all work before the event is done. Does not wait."""
        return self.cuda is None or bool(self.cuda.query())

    def wait(self, stream: Stream | None = None) -> None:
        """Make `stream` (None: the current stream) wait for the event. The host does not wait."""
        if self.cuda is not None:
            self.cuda.wait(_cuda_stream(stream, self.device))

    def synchronize(self) -> None:
        """Make the host wait for the event."""
        if self.cuda is not None:
            self.cuda.synchronize()

    def milliseconds_since(self, earlier: Event) -> float:
        """Return the time from `earlier` to this event in ms, on the device; without a GPU, on the host.

        Raises:
            ValueError: an event was created without `timing`, or has not been recorded.
            RuntimeError: an event is not done yet; check with `query`.
        """
        start, end = earlier._timed_ns(), self._timed_ns()
        if self.cuda is not None and earlier.cuda is not None:
            return float(earlier.cuda.elapsed_time(self.cuda))
        return (end - start) / 1e6

    def _timed_ns(self) -> int:
        if not self._timing or self._recorded_ns is None:
            raise ValueError("the event has no time: create it with timing=True and record it")
        return self._recorded_ns


class Stream:
    """A named stream. `with stream:` makes it the current stream of the thread.

        copy = Stream.create("copy", "cuda")
        with copy:
            batch = batch.to("cuda", non_blocking=True)

    Args:
        name: its purpose, such as "copy".
        device: the device of the stream.
        cuda: the CUDA stream; None without a GPU.
    """

    __slots__ = ("__weakref__", "cuda", "device", "name")

    def __init__(self, name: str, device: torch.device | str, cuda: torch.cuda.Stream | None = None) -> None:
        self.name, self.device, self.cuda = name, torch.device(device), cuda

    @classmethod
    def create(cls, name: str, device: torch.device | str, *, priority: int = 0) -> Stream:
        """Create a stream on `device`. A lower `priority` number runs first (-1 before 0).

        Streams created here and still in use do not share a CUDA stream, while torch.cuda.Stream reuses 32 streams in
        turn. Work on a shared stream would not overlap, and a copy on a stream under graph capture would end the
        capture.
        """
        device = usable_device(device)
        if device.type != "cuda":
            return cls(name, device)
        with _creating:
            stream = cls(name, device, _unused_stream(device, priority))
            _created.add(stream)
        return stream

    @classmethod
    def current(cls, device: torch.device | str) -> Stream:
        """Return this thread's current stream on `device`, with the name "current"."""
        device = usable_device(device)
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
        """Return a new event, recorded after all work in the stream so far."""
        return Event(self.device, timing=timing).record(self)

    def wait(self, other: Event | Stream) -> None:
        """Make the stream wait for an event, or for all work in another stream. The host does not wait."""
        (other.record() if isinstance(other, Stream) else other).wait(self)

    def query(self) -> bool:
        """Return whether all work in the stream is done. Does not wait."""
        return self.cuda is None or bool(self.cuda.query())

    def synchronize(self) -> None:
        """Make the host wait for all work in the stream."""
        if self.cuda is not None:
            self.cuda.synchronize()

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {str(self.device)!r}, {self.cuda})"


class Streams:
    """The named streams of one device.

        streams = Streams("cuda", copy=-1, compute=0)
        with streams["copy"]:
            ...

    Args:
        device: the device of the streams.
        priorities: name=priority for each stream. A lower number runs first.

    Raises:
        ConfigError: the device does not have this priority.
    """

    __slots__ = ("_streams", "device")

    def __init__(self, device: torch.device | str, **priorities: int) -> None:
        self.device = usable_device(device)
        for name, priority in priorities.items():
            _check_priority(self.device, name, priority)
        self._streams = MappingProxyType(
            {name: Stream.create(name, self.device, priority=priority) for name, priority in priorities.items()}
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the given order."""
        return tuple(self._streams)

    @property
    def current(self) -> Stream:
        """This thread's current stream on the device."""
        return Stream.current(self.device)

    def __getitem__(self, name: str) -> Stream:
        if name not in self._streams:
            raise KeyError(f"unknown stream {name!r}; available: {', '.join(self.names) or 'none'}")
        return self._streams[name]

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams.values())

    def __len__(self) -> int:
        return len(self._streams)


def record_stream(tree: Tree, *, ready: Event, to: Stream) -> Tree:
    """Make tensors written on one stream safe to use on another stream.

        with copy:
            batch = host_batch.to("cuda", non_blocking=True)
        record_stream(batch, ready=copy.record(), to=Stream.current("cuda"))
        model(batch)

    `to` waits for `ready`, so it does not read unfinished data. `record_stream` is called for each tensor and each
    other leaf that has this method, so torch's allocator does not reuse the memory while `to` reads it. The host does
    not wait.

    Args:
        tree: any nested batch, see `instrument.trees`.
        ready: an event recorded after the last write to `tree`, on the stream that wrote it.
        to: the stream that uses `tree` next.

    Returns:
        `tree` itself.
    """
    to.wait(ready)
    if to.cuda is not None:
        for leaf in leaves(tree):
            for part in dense_parts(leaf) if isinstance(leaf, torch.Tensor) else (leaf,):
                if getattr(part, "is_cuda", True) and hasattr(part, "record_stream"):
                    part.record_stream(to.cuda)
    return tree


class _Entered(threading.local):
    """The stream contexts that this thread has entered. A stream can be entered again, and by several threads."""

    def __init__(self) -> None:
        self.contexts: list[AbstractContextManager[Any]] = []


_entered = _Entered()
_creating = threading.Lock()
_created: weakref.WeakSet[Stream] = weakref.WeakSet()


def _unused_stream(device: torch.device, priority: int) -> torch.cuda.Stream:
    """Return a stream of torch's pool that no `Stream` uses, or the next one if all are in use."""
    taken = {stream.cuda for stream in list(_created)}
    for _ in range(TORCH_POOL_STREAMS):
        candidate: torch.cuda.Stream = _cuda.Stream(device, priority=priority)
        if candidate not in taken:
            break
    return candidate


def _cuda_stream(stream: Stream | None, device: torch.device) -> torch.cuda.Stream:
    if stream is None:
        return torch.cuda.current_stream(device)
    if stream.cuda is None:
        raise ValueError(f"{stream} is not a CUDA stream, but the event is on {device}")
    return stream.cuda


def _check_priority(device: torch.device, name: str, priority: int) -> None:
    if device.type != "cuda":
        return
    lowest, highest = _cuda.Stream.priority_range()  # for example (0, -5)
    if not highest <= priority <= lowest:
        raise ConfigError(f"stream {name}: {device} has no priority {priority}: use {highest} to {lowest}")
