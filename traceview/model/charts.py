"""Figures that only charts show, as measure/charts.py makes them. Times are ns on the export's own clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceview.model.trace import Window


@dataclass(frozen=True, slots=True)
class StreamsAtOnce:
    """How long every two streams of a device were busy at the same time.

    `streams` are rows of Trace.streams, the busiest first; `together_ns[i][j]` is what the unions of i and
    j have in common, so that the diagonal is each stream's own busy time. `left_out` streams were less busy.
    """

    streams: tuple[int, ...]
    together_ns: tuple[tuple[int, ...], ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class GapLengths:
    """Idle gaps of a device whose length is in [from_ns, to_ns): how many, and their ns by cause."""

    from_ns: int
    to_ns: int
    count: int
    causes: Mapping[str, int]  # those of CAUSES that have some of it
    longest: Window


@dataclass(frozen=True, slots=True)
class CopyGroup:
    """Copies of one kind and memory, of about one size and duration; a group of one is a single copy."""

    kind: str
    memory: str
    count: int
    bytes: int
    duration_ns: int  # of all of them, added up
    slowest: Window
    stream: int  # row of Trace.streams that the slowest ran on


@dataclass(frozen=True, slots=True)
class DeviceCharts:
    """What the charts of one device show. `copies_left_out` have no bytes or no length, hence no bandwidth."""

    device: int  # row of Trace.devices
    streams: StreamsAtOnce
    gaps: tuple[GapLengths, ...]
    copies: tuple[CopyGroup, ...]
    copies_left_out: int


@dataclass(frozen=True, slots=True)
class IterationBar:
    """Iterations that follow each other, in one bar: sums of their ns fields, and which was the slowest."""

    first: int  # place in Iterations.per_iteration
    count: int
    skipped: bool
    wall_ns: int
    parts: Mapping[str, int]  # compute, exposed_h2d, ..., idle_host: those that are not 0
    slowest: int  # place in Iterations.per_iteration


@dataclass(frozen=True, slots=True)
class Charts:
    """Everything that charts show and nothing else does."""

    devices: tuple[DeviceCharts, ...] = ()
    iterations: tuple[IterationBar, ...] = ()
