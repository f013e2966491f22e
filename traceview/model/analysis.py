"""The results of an analysis, which every report shows.

A GPU has its work, the overlap, and the causes of its idle time, in its window and in its steady part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from traceview.model.columns import Paged, Table, column, writer
from traceview.model.drift import Drift
from traceview.model.findings import NO_ANSWER, Answer, Finding
from traceview.model.frozen import dataclass
from traceview.model.program import Program
from traceview.model.rows import ApiTotal, CommunicationOverlap, CopyOverlap, RangeUse, StreamUse
from traceview.model.stacks import HOST_STATES
from traceview.model.trace import Note, ReportInfo, Trace, Window
from traceview.model.units import duration, time_range
from traceview.model.unprofiled import ESTIMATE, ProfilerCosts, UnprofiledTime

CAUSES = ("profiler", "queued", "launch", "sync", "blocking_copy", "memory", "api", "host", "unknown")
CHANGES = ("none", "stream", "process")  # what differs from the operation before a gap to the one after it
# Why nothing computes beside a copy or communication (docs/definitions.md "Exposed time by cause").
EXPOSED_CAUSES = (
    *("host", "waits_for_it", "launch", "same_stream", "kernel_gap", "launched_late", "waited_itself"),
    *("other", "queue", "copy_engine", "end", "unknown"),
)


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
    """Idle gaps of one device.

    `frame` has one row per gap: start, end, before and operation (rows of Trace.operations: the work that ends last
    before it, and the work that ends it; null where there is none), changes (the number of one of CHANGES), thread (row
    of Trace.threads or null) and one Int64 column with the ns of each of CAUSES.
    """

    count: int
    total_ns: int
    causes: Mapping[str, int]
    frame: pl.DataFrame
    longest: tuple[Gap, ...] = ()
    host_states: HostStates = NO_HOST_STATES
    profiler: Mapping[str, int] | None = None  # estimate: the ns of each cause that a run without the profiler lacks


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """The work of one GPU in its window or its steady part, clipped at the border.

    Attributes:
        window: This time, in ns on the capture's clock.
        kernel_count: The number of kernels that start in it.
        busy_ns: Time with any operation, in ns.
        compute_ns: Time with a compute kernel, in ns.
        communication_ns: Time with a communication kernel, in ns.
        exposed_h2d_ns: Time with a host-to-device copy and no compute, in ns.
        exposed_d2h_ns: Time with a device-to-host copy and no compute, in ns.
        idle_ns: Time without an operation, in ns.
        gaps: The idle time by cause, in ns. The longest gaps are listed for the window alone.
        tables: The result of each measure of GPUs, by name; in the steady part without those of the window alone.
    """

    window: Window
    kernel_count: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    exposed_h2d_ns: int
    exposed_d2h_ns: int
    idle_ns: int
    gaps: Gaps
    tables: Mapping[str, Table]

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

    Without iterations the steady part is the window. It is empty if the device works only outside it. Its other
    attributes are those of DeviceFigures, for the window.

    Attributes:
        device: The row of Trace.devices.
        id: The name in reports, such as "GPU 0".
        name: The model of the GPU.
        process_ids: The operating system's ids of the processes that use it.
        steady: The figures in the steady part, in ns.
    """

    device: int
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
    *("wall", "compute", "communication", "exposed_h2d", "exposed_d2h"),
    *("exposed_communication", "idle", "blocked"),
)
NO_RUN = Window(0, 0)


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
    idle_in_wait_ns: int  # ns of starved_ns that lies inside a device's window, each idle ns once
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

    name: str = column("text", "name", "Name of the range, or the number of the period.")
    start_ns: int = column("ns", "start", "Start, on the capture's clock.")
    end_ns: int = column("ns", "end", "End, on the capture's clock.")
    skipped: bool = column("flag", "skipped", "Whether it counts as warm-up.")
    wall_ns: int = column("ns", "wall", "Length.")
    compute_ns: int = column("ns", "compute", "Time with a compute kernel.")
    communication_ns: int = column("ns", "communication", "Time with a communication kernel.")
    exposed_h2d_ns: int = column("ns", "exposed h2d", "Time with a host-to-device copy and no compute.")
    exposed_d2h_ns: int = column("ns", "exposed d2h", "Time with a device-to-host copy and no compute.")
    exposed_communication_ns: int = column("ns", "exposed communication", "Time with communication and no compute.")
    idle_ns: int = column("ns", "idle", "Time without an operation.")
    idle: Mapping[str, int] = column("causes", "idle by cause", "Nanoseconds of idle_ns by cause.")
    blocked_ns: int = column("ns", "blocked", "Time in which the host is in a blocking call.")
    kernel_count: int = column("count", "kernels", "Number of kernels that are launched in it.")
    gpu_end_ns: int | None = column(
        "ns", "GPU end", "When the GPUs have finished its kernels; null without kernels.", default=None
    )


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
    share: float  # share of the time of the counted iterations
    time_ns: Spread
    differs: str  # where they are, and what they launch
    first: int
    longest: int
    mean_ns: int = 0  # documents of early versions lack it

    @property
    def usual_ns(self) -> int:
        """The mean, so that kinds add up to the time of all; the median where a pause or a stall is in the mean."""
        return self.mean_ns if 0 < self.mean_ns <= MUCH_MORE * self.time_ns.median else self.time_ns.median

    @property
    def words(self) -> str:
        """The number and the usual length of the iterations: "16 of 7.5 ms"."""
        return f"{self.count:,} of {duration(self.usual_ns)}"


MUCH_MORE = 1.2  # mean over the usual length; above it, pauses or stalls lengthen the mean
MAX_NAMED_KINDS = 3  # kinds that a sentence names; more are a range (METRICS "Kinds of iterations")


def kinds_words(kinds: Sequence[IterationKind], *, has_last: bool = False) -> str:
    """Return the kinds in words: "16 of 7.5 ms and 8 of 44 ms", more than three as a range; "" without any.

    With `has_last`, the last iteration is of no kind.
    """
    if len(kinds) > MAX_NAMED_KINDS:
        times = [kind.time_ns for kind in kinds]
        return f"{time_range(min(time.p5 for time in times), max(time.p95 for time in times))}"
    *first, last = [*(kind.words for kind in kinds), *["the last"] * has_last] or [""]
    return f"{', '.join(first)} and {last}" if first else last


@dataclass(frozen=True, slots=True)
class IterationCandidate:
    """A phase that repeats: the iterations, or another phase that could be the iteration."""

    name: str
    source: str  # "range" or "period"
    count: int
    time_ns: int  # the mean time from one to the next
    share_fraction: float  # share of the GPU time that its process launches


@dataclass(frozen=True, slots=True)
class Iterations:
    """The iterations of a run (docs/definitions.md "Iterations").

    Attributes:
        range: The name of the NVTX ranges, or a description of the period.
        source: "range", or "period" where the launch sequence repeats.
        confidence: The certainty that this is the unit that repeats, from 0 to 1.
        time_ns: The mean time from one counted iteration to the next in ns, which every report states.
        steady: The time from the first counted iteration to the last, in ns.
        candidates: Other phases that repeat.
        thread: The thread with most of the launches, a row of Trace.threads.
        process_id: The operating system's id of its process.
        count: The number of iterations, the skipped ones included.
        skipped: The number of warm-up iterations.
        skipped_why: Why they are skipped.
        lost: The number of further iterations whose GPU work the capture lacks.
        apart: The number of further iterations beyond these, which do not count either.
        drift: How they change during the run; None if they do not.
        wall_ns: The length of the counted iterations, in ns.
        spreads: The spread of each figure of Iteration in ns, by name.
        per_iteration: The figures of each iteration, in ns.
        unprofiled: An estimate of the time without the profiler in ns; None if the capture gives none.
        kinds: Iterations that differ in what they launch or in length; empty if all are of one kind.
    """

    range: str
    source: str
    confidence: float
    time_ns: int
    steady: Window
    candidates: tuple[IterationCandidate, ...]
    thread: int
    process_id: int
    count: int
    skipped: int
    skipped_why: str
    wall_ns: Spread
    spreads: Mapping[str, Spread]
    per_iteration: tuple[Iteration, ...]
    unprofiled: UnprofiledTime | None = None
    kinds: tuple[IterationKind, ...] = ()
    lost: int = 0
    apart: int = 0
    drift: Drift | None = None

    @property
    def counted(self) -> int:
        """The number of iterations that are not warm-up."""
        return self.count - self.skipped

    @property
    def time_words(self) -> str:
        """What an iteration takes: "13.8 ms", or "16 of 7.5 ms and 8 of 44 ms" where there are kinds."""
        if not self.kinds:
            return duration(self.time_ns)
        return kinds_words(self.kinds, has_last=sum(kind.count for kind in self.kinds) < self.counted)


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


class AnalysisOptions(NamedTuple):
    """Options of an analysis (see pipeline.analyze)."""

    device: str | None = None
    iteration: str | None = None
    skip: int | None = None
    top: int = 10
    whole: bool = False
    flops_per_iteration: int | None = None
    costs: ProfilerCosts | None = ESTIMATE
    unprofiled_ns: int | None = None


DEFAULT_OPTIONS = AnalysisOptions()


@dataclass(frozen=True, slots=True, repr=False)
class Analysis(Paged):
    """Everything that a report shows. It is a plain value, which pickles and compares.

    Attributes:
        info: The file, the profiler, and what the capture lacks.
        trace: The events, as frames; times in ns on the capture's clock.
        devices: The work and the idle time of each GPU, in ns.
        host: Blocking calls of the host, in ns.
        tables: The result of each measure of the capture, by name; `table(name)` returns a frame.
        iterations: The iterations and their times in ns, or why there are none.
        unmatched: The number of operations whose launch is not in the capture.
        run: From the first CUDA call or GPU work to the end of the last, in ns.
        findings: What costs GPU time with its remedy, the largest gain first.
        notes: What is missing, lost or doubtful, and which figures it affects.
        whole: Whether findings and bars cover the whole window, not the steady part.
        answer: The result in two sentences, and the change that gains most.
        holes: When the capture lacks the GPU work of many launches, in ns.
        options: The options of `analyze`.
    """

    info: ReportInfo
    trace: Trace
    devices: tuple[DeviceUse, ...]
    host: HostUse
    tables: Mapping[str, Table]
    iterations: Iterations | NotMeasured
    unmatched: Unmatched
    run: Window = NO_RUN
    findings: tuple[Finding, ...] = field(default=())
    notes: tuple[Note, ...] = ()
    whole: bool = False
    answer: Answer = NO_ANSWER
    options: AnalysisOptions = DEFAULT_OPTIONS
    holes: tuple[Window, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Analysis) and equal_values(self, other)

    def table(self, name: str) -> pl.DataFrame:
        """Return a table as a frame: one of the JSON, with its columns (`help()` of its row type has units), or events.

        A table of GPUs has a first column `device` with the id of the GPU, and covers what findings cover. Tables of
        events are `gaps`, `operations`, `launches`, `calls`, `long_calls` and `iterations`. Raises RequestError if no
        table has the name, or if the capture lacks what the table is measured from.
        """
        frame: pl.DataFrame = writer().frame(self, name)
        return frame

    def covered(self, device: DeviceUse) -> DeviceFigures:
        """Return the figures of a device in the time that findings and bars cover."""
        return device if self.whole else device.steady

    @property
    def covers_run(self) -> bool:
        """Whether findings cover the run, from its first CUDA call to its last, and not the counted iterations."""
        return self.whole or isinstance(self.iterations, NotMeasured)

    def compute_share(self, device: DeviceUse) -> float:
        """Return the share of the time of a device in which it computes, waits for the profiler left out."""
        whole = self.covered_ns(device) - sum((device.gaps.profiler or {}).values())
        return self.covered(device).compute_ns / max(whole, 1)

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
