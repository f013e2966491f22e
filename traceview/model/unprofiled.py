"""The time without the profiler: what the profiler adds to each traced call, and what an iteration takes without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from traceview.frozen import frozen

# The kinds of calls that cost the profiler alike, tried in this order: a regular expression on the call's name.
CALL_KINDS: Mapping[str, str] = {
    "own": "^cuKernelGetName$",  # nsys calls it inside the launch calls that it traces
    "graph": "GraphLaunch",
    "launch": "Launch(Kernel|Cooperative|HostFunc|Grid)",
    "copy": "Memcpy|Memset|MemPrefetch",
    "sync": "Synchronize",
    "event": "Event",
    "memory": "Malloc|Free|Alloc|MemCreate|MemMap|MemRelease|MemUnmap",
    "query": "",
}


class Bounds(NamedTuple):
    """An uncertain time in ns."""

    low: float
    middle: float
    high: float

    def scaled(self, factor: float) -> Bounds:
        """Return the bounds times a factor."""
        return Bounds(*(value * factor for value in self))


@frozen
class ProfilerCosts:
    """What the profiler adds, in ns: to a call of each of CALL_KINDS, a pushed and popped range, and between kernels.

    `source` is "estimate" for values of another machine, "calibration" for those of `traceview calibrate`. `gpu` is the
    GPU that was calibrated, "" for an estimate.
    """

    source: str
    calls: Mapping[str, Bounds]
    range: Bounds
    kernel_gap: Bounds
    gpu: str = ""

    def scaled(self, factor: float) -> ProfilerCosts:
        """Return the costs times a factor."""
        calls = {kind: bounds.scaled(factor) for kind, bounds in self.calls.items()}
        return ProfilerCosts(self.source, calls, self.range.scaled(factor), self.kernel_gap.scaled(factor), self.gpu)


@frozen
class UnprofiledTime:
    """The time of an iteration without the profiler, and the profiler's part of each device's idle time.

    `source` is that of ProfilerCosts, or "given" for a measured time, which the `costs` are scaled to. `shares` has for
    each device (row of Trace.devices) and cause the fraction of the idle time that is the profiler's.
    """

    mean_ns: int
    low_ns: int
    high_ns: int
    source: str
    costs: ProfilerCosts
    shares: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    @property
    def times(self) -> dict[str, int]:
        """The time and its range in ns."""
        return {"mean": self.mean_ns, "low": self.low_ns, "high": self.high_ns}


# H200 host, nsys 2024.2.3, -t cuda,nvtx.
ESTIMATE = ProfilerCosts(
    source="estimate",
    calls={
        "own": Bounds(0, 0, 0),
        "graph": Bounds(3_000, 6_000, 12_000),
        "launch": Bounds(4_000, 7_500, 11_000),
        "copy": Bounds(4_000, 7_500, 11_000),
        "sync": Bounds(2_000, 3_000, 5_000),
        "event": Bounds(700, 1_500, 2_500),
        "memory": Bounds(1_000, 3_000, 6_000),
        "query": Bounds(300, 900, 1_500),
    },
    range=Bounds(1_000, 2_000, 4_000),
    kernel_gap=Bounds(500, 700, 900),
)
