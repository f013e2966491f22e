"""The time without the profiler: what the profiler adds to each traced call, and what an iteration takes without it.

Constants are of an H200's host (Xeon, 16 cores) with nsys 2024.2.3 and `-t cuda,nvtx -s none`, from runs of twelve
programs with and without nsys (docs/unprofiled.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import NamedTuple

from traceview.model.frozen import dataclass

# A call takes CALL_FIXED ns and CALL_SHARE of its own length more under nsys, at most MAX_CALL: a long call waits.
CALL_FIXED, CALL_SHARE, MAX_CALL = 1_000, 0.7, 6_000
RANGE_EVENT = 750  # ns that each start and end of an NVTX range takes more
OWN_CALL = "cuKernelGetName"  # nsys makes it before each launch call of the runtime that it traces


class Bounds(NamedTuple):
    """An uncertain figure."""

    low: float
    middle: float
    high: float

    def times(self, factor: float) -> Bounds:
        """Return the bounds times a factor."""
        return Bounds(*(value * factor for value in self))


@dataclass(frozen=True, slots=True)
class ProfilerCosts:
    """What the profiler adds on a machine.

    `scale` is a factor of the constants above, 1 on the reference machine (benchmarks/calibrate.py), and
    `kernel_gap` the ns between two kernels of a GPU that is behind.
    """

    scale: Bounds
    kernel_gap: Bounds

    def scaled(self, factor: float) -> ProfilerCosts:
        """Return the costs times a factor."""
        return replace(self, scale=self.scale.times(factor), kernel_gap=self.kernel_gap.times(factor))


GAP_SPREAD = Bounds(0.7, 1.0, 1.4)
ESTIMATE = ProfilerCosts(Bounds(0.5, 1.0, 1.5), GAP_SPREAD.times(260))


@dataclass(frozen=True, slots=True)
class UnprofiledTime:
    """The time of an iteration without the profiler, and the profiler's share of each device's idle time.

    `source` is "estimate", or "given" for a measured time, which the `costs` are scaled to. `shares` has for
    each device (row of Trace.devices) and cause the fraction of the idle time that is the profiler's. `slowdown` is how
    much slower the host ran than usually, 1 for a measured time.
    """

    mean_ns: int
    low_ns: int
    high_ns: int
    source: str
    costs: ProfilerCosts
    shares: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    slowdown: float = 1.0

    @property
    def times(self) -> dict[str, int]:
        """The time and its range in ns."""
        return {"mean": self.mean_ns, "low": self.low_ns, "high": self.high_ns}
