"""Where the time of a GPU goes: parts that add up to it, the one base of the percentages of a screen.

The base is the time that findings cover: the counted iterations, or the run from its first CUDA call to its last. The
idle time that a run without the profiler lacks is a part of its own, so that the other parts are the time without it
(docs/definitions.md "One base").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceview.model.analysis import Analysis, DeviceFigures, DeviceUse
from traceview.model.units import share

MIN_PROFILER = 0.03  # share of the time; a smaller share of the profiler is not shown (METRICS "One screen, one base")
OUTSIDE = "outside"
PROFILER = "profiler"


@dataclass(frozen=True, slots=True)
class Composition:
    """The parts of a GPU's time in ns, which add up to `whole_ns`.

    `busy` has the parts with GPU work: "compute", "communication" (exposed) and "copies" (exposed copies, and memsets).
    `idle` has the idle time by cause, without the part of the profiler, which is `profiler_ns`. `outside_ns` is the
    time of the run before the first and after the last GPU work.
    """

    whole_ns: int
    busy: Mapping[str, int]
    idle: Mapping[str, int]
    profiler_ns: int
    outside_ns: int

    @property
    def idle_ns(self) -> int:
        """The idle time without the part of the profiler."""
        return sum(self.idle.values())

    @property
    def parts(self) -> dict[str, int]:
        """All parts in ns, idle time as one; they add up to `whole_ns`."""
        return {**self.busy, PROFILER: self.profiler_ns, "idle": self.idle_ns, OUTSIDE: self.outside_ns}

    def percent(self, ns: int) -> str:
        """Return a time as a percentage of the one base: `12.3%`."""
        return share(ns, self.whole_ns)


def composition(analysis: Analysis, device: DeviceUse, *, whole: bool | None = None) -> Composition:
    """Return the parts of the time of a device that findings cover; of its window or steady part with `whole`.

    Where the capture lacks the work of all launches, or most calls, the cause of idle time is unknown.
    """
    whole = analysis.whole if whole is None else whole
    use: DeviceFigures = device if whole else device.steady
    covers_run = whole or analysis.covers_run
    total = max(analysis.run.length, use.window.length) if covers_run else use.window.length
    communication = use.communication.exposed_ns
    copies = use.busy_ns - use.compute_ns - communication
    idle, profiler = _idle_by_cause(use, total)
    if analysis.info.trust.lost_everything:
        idle = {**dict.fromkeys(idle, 0), "unknown": sum(idle.values())}
    busy = {"compute": use.compute_ns, "communication": communication, "copies": copies}
    return Composition(total, busy, idle, profiler, total - use.window.length)


def _idle_by_cause(use: DeviceFigures, total: int) -> tuple[dict[str, int], int]:
    """Return the idle time by cause without the profiler's part, and this part: 0 if it is small or unknown."""
    lost = use.gaps.profiler or {}
    profiler = sum(lost.values())
    if profiler < MIN_PROFILER * total:
        return dict(use.gaps.causes), 0
    return {cause: ns - lost.get(cause, 0) for cause, ns in use.gaps.causes.items()}, profiler
