"""A slice of a capture: its trace, and what several passes over slices derive from it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

from traceview.measure.activity import Activity, device_activity
from traceview.measure.gaps.thread_states import ThreadStates
from traceview.measure.host import HostIdle
from traceview.model.trace import Trace

Result = TypeVar("Result")
Made = TypeVar("Made")


class Slice:
    """The trace of a slice, whose window is that of the slice. Derived parts are made once, when they are needed."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._made: dict[Hashable, tuple[Hashable, Any]] = {}

    def once(self, key: Hashable, make: Callable[[], Made], about: Hashable = None) -> Made:
        """Return what `make` returned at the last call with this key, or make it anew if `about` has changed."""
        if key not in self._made or self._made[key][0] != about:
            self._made[key] = about, make()
        made: Made = self._made[key][1]
        return made

    @cached_property
    def complete(self) -> Trace:
        """The trace without its window: it has operations around the slice."""
        return replace(self.trace, window=None)

    def work(self, device: int) -> Activity | None:
        """Return the work of a device, also around the slice; None if it has none."""
        return self.once(("work", device), lambda: device_activity(self.complete, device))

    @cached_property
    def threads(self) -> ThreadStates:
        """What the host threads do (see ThreadStates)."""
        return ThreadStates.from_trace(self.trace)

    @cached_property
    def host_idle(self) -> HostIdle | None:
        """What the host does while devices are idle (see HostIdle); None if nothing shows it."""
        return HostIdle.build(self.trace, self.threads)


class OverSlices(Protocol):
    """Runs a function over all slices."""

    def __call__(self, function: Callable[[Slice], Result], /) -> Iterable[Result]:
        """Return the results in the order of time."""


class InSlice(Protocol):
    """Runs a function over one slice."""

    def __call__(self, number: int, function: Callable[[Slice], Result], /) -> Result:
        """Return the result for the slice with this number, from 0 in the order of time."""
