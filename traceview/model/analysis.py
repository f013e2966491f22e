"""The results of an analysis, which every report shows.

A GPU has its work, the overlap, and the causes of its idle time, in its window and in its steady part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import polars as pl

from traceview.model.columns import Drawn, Table
from traceview.model.findings import NO_ANSWER, Answer, Finding
from traceview.model.program import Program
from traceview.model.rows import ApiTotal, CommunicationOverlap, CopyOverlap, RangeUse, StreamUse
from traceview.model.stacks import HOST_STATES
from traceview.model.trace import Note, ReportInfo, Trace, Window
from traceview.model.units import duration, plain
from traceview.model.unprofiled import UnprofiledTime

CAUSES = ("profiler", "queued", "launch", "sync", "blocking_copy", "memory", "api", "host", "unknown")


@dataclass(frozen=True, slots=True)
class Gap:
    """One idle gap. The ns of its causes add up to its length."""

    start_ns: int
    end_ns: int
    causes: Mapping[str, int]  # every cause, in the order of CAUSES
    next_operation: str | None  # the name of the operation that ends it
    thread: int | None  # the thread that launched it, a row of Trace.threads
    range: str | None  # innermost NVTX range that is open on this thread in the middle of its wait

    @property
    def cause(self) -> str:
        """The cause with the most time."""
        return max(self.causes, key=lambda name: self.causes[name])


@dataclass(frozen=True, slots=True)
class HostStates:
    """What the launching threads did in `host` idle time (docs/definitions.md).

    `ns` has each of HOST_STATES; they add up to `host`. `waits` names the calls of the state `waiting`, the longest
    first, and `waits_for` the threads and processes that work meanwhile.
    """

    ns: Mapping[str, int]
    waits: Mapping[str, int]
    waits_for: Mapping[str, int]


NO_HOST_STATES = HostStates(dict.fromkeys(HOST_STATES, 0), {}, {})


@dataclass(frozen=True, slots=True)
class Gaps:
    """Idle gaps of one device or stream.

    `frame` has one row per gap: start, end, operation (row of Trace.operations, null at the end of a window), thread
    (row of Trace.threads or null) and one Int64 column with the ns of each of CAUSES. Gaps of a stream have three more
    causes, which take precedence: other_compute, other_communication and other_copy. Their `frame` is empty to save
    memory; only sums are measured.
    """

    count: int
    total_ns: int
    causes: Mapping[str, int]
    frame: pl.DataFrame
    longest: tuple[Gap, ...] = ()
    host_states: HostStates = NO_HOST_STATES  # measured for devices, not for streams
    profiler: Mapping[str, int] | None = None  # estimate: the ns of each cause that a run without the profiler lacks


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """The work of one GPU in a part of its window, clipped at the border of the part."""

    window: Window
    kernel_count: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    exposed_h2d_ns: int
    exposed_d2h_ns: int
    idle_ns: int
    gaps: Gaps  # the longest are listed for the window alone
    tables: Mapping[str, Table]  # the result of every PartMeasure, by name; in the window also of every DeviceMeasure

    def figures(self) -> dict[str, Any]:
        """Return the fields of DeviceFigures by name, also for a DeviceUse."""
        return {field.name: getattr(self, field.name) for field in fields(DeviceFigures)}

    @property
    def copies(self) -> tuple[CopyOverlap, ...]:
        """One row per kind and memory."""
        return self.tables["copies"].rows

    @property
    def communication(self) -> CommunicationOverlap:
        """The communication kernels."""
        return self.tables["communication"].rows[0]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class DeviceUse(DeviceFigures):
    """One GPU in its window, and in its steady part (docs/definitions.md "The steady part").

    Without iterations the steady part is the window. It is empty if the device works only outside it.
    """

    device: int  # row of Trace.devices
    id: str
    name: str
    process_ids: tuple[int, ...]
    steady: DeviceFigures

    @property
    def streams(self) -> tuple[StreamUse, ...]:
        """One row per stream."""
        return self.tables["streams"].rows

    def compute_to_hide(self, kinds: Collection[str]) -> int:
        """Return the ns of compute that no copy of these kinds overlaps: the most that hiding these copies can save."""
        overlapped = [sum(each.overlapped_ns for each in self.copies if each.kind == kind) for kind in kinds]
        return max(self.compute_ns - min(overlapped, default=0), 0)


# The figures of an iteration in ns, besides its idle time by cause.
ITERATION_FIGURES = (
    "wall",
    "compute",
    "communication",
    "exposed_h2d",
    "exposed_d2h",
    "exposed_communication",
    "idle",
    "blocked",
)
NO_RUN = Window(0, 0)
MAX_LINE = 200  # letters of a line of a representation


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """The reason why a figure is missing. Missing data is neither an error nor 0; every report shows the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class SyncUse:
    """Blocking calls (docs/definitions.md "Synchronization").

    `frame` has one row per call: start, end, name, thread, process, api (row of Trace.api), wait (the number of its
    wait), returned (when its wait returned), and blocked, waited, starved, idle_in_wait, refill and cost in ns. The
    last three are shares of the wait's.
    """

    count: int
    blocked_ns: int
    waited_ns: int
    starved_ns: int
    idle_in_wait_ns: int  # part of starved_ns that lies inside a device's window, each idle ns once
    refill_ns: int
    cost_ns: int  # at most idle_in_wait_ns + refill_ns, and at most blocked_ns
    calls: tuple[ApiTotal, ...]
    frame: pl.DataFrame


@dataclass(frozen=True, slots=True)
class HostUse:
    """Explicit synchronizations, and calls that synchronize implicitly."""

    sync: SyncUse
    implicit_sync: SyncUse


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration. GPU figures are clipped to [start, end) and summed over the devices of its process."""

    name: str
    start_ns: int
    end_ns: int
    skipped: bool
    wall_ns: int
    compute_ns: int
    communication_ns: int
    exposed_h2d_ns: int
    exposed_d2h_ns: int
    exposed_communication_ns: int
    idle_ns: int
    idle: Mapping[str, int]  # idle ns by cause
    blocked_ns: int
    kernel_count: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and tails in ns, linearly interpolated between ranks and rounded down."""

    median: int
    p5: int
    p95: int


@dataclass(frozen=True, slots=True)
class IterationKind:
    """Counted iterations that differ from the others in what they launch, or in length. A single one is a stall.

    `first` and `longest` are the numbers of instances, from 0, with the skipped ones.
    """

    count: int
    share: float  # part of the time of the counted iterations
    time_ns: Spread
    differs: str  # where they are, and what they launch
    first: int
    longest: int

    @property
    def words(self) -> str:
        """The number and the length of the iterations: "16 of 7.5 ms"."""
        return f"{self.count:,} of {duration(self.time_ns.median)}"


def kinds_words(kinds: Sequence[IterationKind]) -> str:
    """Return the kinds in words: "16 of 7.5 ms and 8 of 44 ms"; "" without any."""
    *first, last = [kind.words for kind in kinds] or [""]
    return f"{', '.join(first)} and {last}" if first else last


@dataclass(frozen=True, slots=True)
class IterationCandidate:
    """A phase that repeats: the iterations, or another phase that could be the iteration."""

    name: str
    source: str  # "range" or "period"
    count: int
    time_ns: int  # the mean time from one to the next
    share_fraction: float  # part of the GPU time that its process launches


@dataclass(frozen=True, slots=True)
class Iterations:
    """The iterations of a run (docs/definitions.md "Iterations").

    With source "range", `range` is the name of NVTX ranges. With source "period", the launch sequence repeats: `range`
    describes the period, and `thread` is the thread with most of its launches.
    """

    range: str
    source: str  # "range" or "period"
    confidence: float  # 0 to 1: certainty that this is the unit that repeats
    time_ns: int  # the mean time from one counted iteration to the next, which every report states
    steady: Window  # the time from the first counted iteration to the last
    candidates: tuple[IterationCandidate, ...]  # other phases that repeat
    thread: int
    process_id: int
    count: int  # including the skipped ones
    skipped: int
    skipped_why: str
    wall_ns: Spread
    spreads: Mapping[str, Spread]  # one per ns field of Iteration
    per_iteration: tuple[Iteration, ...]
    unprofiled: UnprofiledTime | None = None  # an estimate; None if the capture gives none
    kinds: tuple[IterationKind, ...] = ()  # empty if all counted iterations are of one kind

    @property
    def counted(self) -> int:
        """The number of iterations that are not warm-up."""
        return self.count - self.skipped

    @property
    def time_words(self) -> str:
        """What an iteration takes: "13.8 ms", or "16 of 7.5 ms and 8 of 44 ms" where there are kinds."""
        return kinds_words(self.kinds) or duration(self.time_ns)


@dataclass(frozen=True, slots=True)
class IterationSummary:
    """The source of a capture's iterations and their mean time, for reports that compare or predict it."""

    source: str  # "range", "period" or "none"
    confidence: float | None
    time_ns: int | None
    kinds: tuple[IterationKind, ...] = ()

    @classmethod
    def build(cls, iterations: Iterations) -> IterationSummary:
        """Return the summary of iterations."""
        return cls(iterations.source, iterations.confidence, iterations.time_ns, iterations.kinds)


@dataclass(frozen=True, slots=True)
class Unmatched:
    """GPU work whose launch is not in the capture. Unified-memory copies never have one and do not count."""

    kernels: int
    copies: int
    memsets: int
    graphs: int


@dataclass(frozen=True, slots=True, repr=False)
class Analysis(Drawn):
    """Everything that a report shows. It is a plain value, which pickles and compares."""

    info: ReportInfo
    trace: Trace
    devices: tuple[DeviceUse, ...]
    host: HostUse
    tables: Mapping[str, Table]  # the result of every CaptureMeasure, by name
    iterations: Iterations | NotMeasured
    unmatched: Unmatched
    run: Window = NO_RUN  # from the first CUDA call or GPU work to the end of the last
    findings: tuple[Finding, ...] = field(default=())
    notes: tuple[Note, ...] = ()  # what is missing, lost or doubtful, and which figures it affects
    whole: bool = False  # findings, bars and conditions cover the whole window, not the steady part
    answer: Answer = NO_ANSWER

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Analysis) and equal_values(self, other)

    def __repr__(self) -> str:
        iterations, first = self.iterations, self.findings[:1]
        if isinstance(iterations, Iterations):
            iteration = f"{duration(iterations.time_ns)}, {iterations.range}"
        else:
            iteration = f"not measured: {iterations.reason}"
        lines = (
            f"file: {self.info.file}",
            f"program: {self.program.kind}",
            f"devices: {', '.join(device.id for device in self.devices) or 'none'}",
            f"iteration: {iteration}",
            f"first finding: {first[0].title if first else 'none'}",
        )
        return "\n".join(("Analysis", *(f"  {plain(line, MAX_LINE)}" for line in lines)))

    def part(self, device: DeviceUse) -> DeviceFigures:
        """Return the part of a device's window that findings, bars and conditions cover."""
        return device if self.whole else device.steady

    @property
    def covers_run(self) -> bool:
        """Whether findings cover the run, from its first CUDA call to its last, and not the counted iterations."""
        return self.whole or isinstance(self.iterations, NotMeasured)

    def compute_share(self, device: DeviceUse) -> float:
        """Return the share of the time of a device in which it computes, waits for the profiler left out."""
        whole = self.covered_ns(device) - sum((device.gaps.profiler or {}).values())
        return self.part(device).compute_ns / max(whole, 1)

    def covered_ns(self, device: DeviceUse) -> int:
        """Return the time that the shares of a device's findings refer to, in ns."""
        return self.run.length if self.covers_run else device.steady.window.length

    @property
    def program(self) -> Program:
        """The kind of the program."""
        return self.trace.program

    @property
    def nvtx(self) -> tuple[RangeUse, ...] | NotMeasured:
        """One row per name and domain of NVTX ranges, the busiest on the GPU first."""
        table = self.tables["nvtx"]
        return table.rows if table.not_measured is None else NotMeasured(table.not_measured)


def equal_values(value: Any, other: Any) -> bool:
    """Return whether two values have one type and are equal, also the frames and arrays in them."""
    if value is other:
        return True
    if type(value) is not type(other):
        return False
    if isinstance(value, pl.DataFrame):
        return value.schema == other.schema and value.equals(other)
    if isinstance(value, np.ndarray):
        return value.dtype == other.dtype and np.array_equal(value, other)
    if is_dataclass(value):
        names = (field.name for field in fields(value) if field.compare)
        return all(equal_values(getattr(value, name), getattr(other, name)) for name in names)
    if isinstance(value, Mapping):
        return value.keys() == other.keys() and all(equal_values(member, other[key]) for key, member in value.items())
    if isinstance(value, (tuple, list)):
        return len(value) == len(other) and all(map(equal_values, value, other))
    return bool(value == other)
