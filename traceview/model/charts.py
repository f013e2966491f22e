"""Figures that only charts show (traceview.measure.charts). Times are ns on the export's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from traceview.model.analysis import Iteration
from traceview.model.frozen import dataclass
from traceview.model.trace import Window

MAX_BARS = 240  # bars of a capture's iterations
# The segments of an iteration's bar, besides its idle time by cause.
SEGMENTS = ("compute", "exposed_communication", "exposed_h2d", "exposed_d2h")


class StreamsAtOnce(NamedTuple):
    """How long each pair of a device's streams was busy at the same time.

    `streams` are rows of Trace.streams, the busiest first. `together_ns[i][j]` is the length of the intersection of
    streams i and j, so the diagonal has each stream's busy time. `left_out` is the number of less busy streams.
    """

    streams: tuple[int, ...]
    together_ns: tuple[tuple[int, ...], ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class GapLengths:
    """A device's idle gaps whose length is in [from_ns, to_ns): their count, and their ns by cause."""

    from_ns: int
    to_ns: int
    count: int
    causes: Mapping[str, int]  # only causes that occur
    longest: Window


@dataclass(frozen=True, slots=True)
class CopyGroup:
    """Copies of one kind and memory with similar size and duration, or a single copy."""

    kind: str
    memory: str
    count: int
    bytes: int
    duration_ns: int  # sum over the copies
    slowest: Window
    stream: int  # the slowest copy's row of Trace.streams


class KernelInstance(NamedTuple):
    """One kernel, on a row of Trace.streams."""

    start: int
    end: int
    stream: int


@dataclass(frozen=True, slots=True)
class SimilarKernels:
    """Kernels that have something in common. `name` is None for launch shapes, and for kernels without this place."""

    name: str | None
    count: int
    total_ns: int
    median: KernelInstance
    longest: KernelInstance
    first: KernelInstance


class KernelGrouping(NamedTuple):
    """All kernels of a device in a window by one attribute, the costliest group first."""

    by: str  # shape, kernel, family, range, module, op, ...
    groups: tuple[SimilarKernels, ...]


@dataclass(frozen=True, slots=True)
class PlaceNode:
    """Kernels of a module, a range, an op or of one name. `parent` is the index of the node around it, -1 for none."""

    name: str
    parent: int
    count: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class RangeNode:
    """Kernels that are launched in a range, or in ranges of one name. `own_ns` is the time outside inner ranges."""

    name: str
    parent: int  # index of the range around it, -1 for none
    count: int
    total_ns: int
    own_ns: int


class StackNode(NamedTuple):
    """A source line of the program, or a function of a library, that stacks share with its callers.

    `parent` is the index of its caller, -1 for none. A run of library calls is one node: `inner` is the innermost of
    them, and `calls` their number. The figures (StackTimes) include what the node calls.
    """

    function: str
    place: str  # file and line of the program, file of a library
    library: bool
    parent: int
    idle_ns: int
    idle_samples: int
    thread_ns: int
    thread_samples: int
    inner: str = ""
    calls: int = 1


class StackTree(NamedTuple):
    """The stacks of a capture as a tree, callers first. If `exact` is false, its times come from samples."""

    nodes: tuple[StackNode, ...] = ()
    exact: bool = True


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """The kernels of one row of Trace.shapes in the whole capture. None stands for data that the capture lacks."""

    shape: int
    name: str
    demangled: str | None
    family: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    registers: int | None
    shared_bytes: int | None
    count: int
    total_ns: int
    median_ns: int


class DeviceCharts(NamedTuple):
    """The charts of one device. `copies_left_out` copies have no bandwidth because their bytes or length are 0.

    `kernels`, `places` and `ranges` are those of the time that findings cover; `other_kernels` are those of the other
    of steady part and window, empty where both are the same.
    """

    device: int  # row of Trace.devices
    streams: StreamsAtOnce
    gaps: tuple[GapLengths, ...]
    copies: tuple[CopyGroup, ...]
    copies_left_out: int
    kernels: tuple[KernelGrouping, ...] = ()
    other_kernels: tuple[KernelGrouping, ...] = ()
    places: tuple[PlaceNode, ...] = ()
    ranges: tuple[RangeNode, ...] = ()


@dataclass(frozen=True, slots=True)
class IterationBar:
    """Consecutive iterations in one bar: the sums of their figures, and the slowest one."""

    first: int  # index into Iterations.per_iteration
    count: int
    skipped: bool
    wall_ns: int
    parts: Mapping[str, int]  # compute, exposed_h2d, ..., idle_host: those that are not 0
    slowest: int  # index into Iterations.per_iteration


class Charts(NamedTuple):
    """All figures that only charts show."""

    devices: tuple[DeviceCharts, ...] = ()
    iterations: tuple[IterationBar, ...] = ()
    shapes: tuple[LaunchShape, ...] = ()
    stacks: StackTree = StackTree()


def iteration_bars(iterations: Sequence[Iteration], limit: int = MAX_BARS) -> tuple[IterationBar, ...]:
    """Merge consecutive iterations into about `limit` bars of equal size. Warm-up has bars of its own."""
    if not iterations:
        return ()
    width = max(1, -(-len(iterations) // limit))
    warm_up = sum(iteration.skipped for iteration in iterations)  # the first ones
    firsts = [*range(0, warm_up, width), *range(warm_up, len(iterations), width)]
    wall = [iteration.wall_ns for iteration in iterations]
    sums = {
        name: np.add.reduceat(np.array(ns, np.int64), firsts).tolist() for name, ns in _segments(iterations).items()
    }
    stops = [*firsts[1:], len(iterations)]
    return tuple(
        IterationBar(
            first=first,
            count=stop - first,
            skipped=iterations[first].skipped,
            wall_ns=sum(wall[first:stop]),
            parts={name: ns[bar] for name, ns in sums.items() if ns[bar]},
            slowest=max(range(first, stop), key=wall.__getitem__),
        )
        for bar, (first, stop) in enumerate(zip(firsts, stops, strict=True))
    )


def _segments(iterations: Sequence[Iteration]) -> dict[str, list[int]]:
    """Return the ns of each segment in each iteration."""
    segments = {name: list(map(attrgetter(f"{name}_ns"), iterations)) for name in SEGMENTS}
    causes = iterations[0].idle
    return segments | {f"idle_{cause}": [iteration.idle[cause] for iteration in iterations] for cause in causes}
