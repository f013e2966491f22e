"""The results of an analysis, which every report shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import polars as pl

from traceview.intervals import Times
from traceview.model.columns import Table
from traceview.model.counters import Counters
from traceview.model.devices import DeviceFigures, DeviceUse, HostStates
from traceview.model.findings import Finding
from traceview.model.program import Program
from traceview.model.rows import ApiTotal, RangeUse, SourceLine
from traceview.model.trace import Note, ReportInfo, Trace, Window
from traceview.model.unprofiled import UnprofiledTime

if TYPE_CHECKING:
    from traceview.model.charts import Charts
    from traceview.report.notebook import AnalysisFigures
    from traceview.timeline.events import PageSource

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


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """The reason why a figure is missing. Missing data is neither an error nor 0; every report shows the reason."""

    reason: str


class HostTime(Protocol):
    """Answers what the host did in idle gaps, given as rows of Gaps.frame."""

    def lines(self, gaps: Sequence[pl.DataFrame]) -> tuple[SourceLine, ...]:
        """Return the source lines in the gaps of some devices, the most idle time first."""

    def line_sums(self, gaps: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Return the sums that `lines` follows from, which add up over slices of a capture; `exact` is a flag."""

    def lines_of_sums(self, sums: pl.DataFrame) -> tuple[SourceLine, ...]:
        """Return the source lines of these sums, the most idle time first."""

    def line_cells(self, gaps: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Return the parts of this idle time by line: file, line, function, moment and idle_ns."""

    def thread_stacks(self) -> pl.DataFrame:
        """Return the stacks of threads by time: start, end, stack (row of HostEvidence.stacks) and thread.

        A sample stands for the time nearest to it. A thread has its Python stacks; without these, its CPU samples.
        """

    def lines_at(self, thread: Times, moments: Times) -> list[str]:
        """Return the line of the program where each thread (row of Trace.threads) is at a moment; "" if unknown."""

    def states(self, gaps: pl.DataFrame, line: SourceLine | None = None) -> HostStates:
        """Return the states of threads in the gaps of a device, or in the part of them that is spent at a line."""


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


@dataclass(frozen=True, slots=True)
class IterationSummary:
    """The source of a capture's iterations and their mean time, for reports that compare or predict it."""

    source: str  # "range", "period" or "none"
    confidence: float | None
    time_ns: int | None

    @classmethod
    def build(cls, iterations: Iterations) -> IterationSummary:
        """Return the summary of iterations."""
        return cls(iterations.source, iterations.confidence, iterations.time_ns)


@dataclass(frozen=True, slots=True)
class Unmatched:
    """GPU work whose launch is not in the capture. Unified-memory copies never have one and do not count."""

    kernels: int
    copies: int
    memsets: int
    graphs: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything that a report shows."""

    info: ReportInfo
    trace: Trace
    devices: tuple[DeviceUse, ...]
    host: HostUse
    tables: Mapping[str, Table]  # the result of every CaptureMeasure, by name
    iterations: Iterations | NotMeasured
    unmatched: Unmatched
    findings: tuple[Finding, ...] = field(default=())
    notes: tuple[Note, ...] = ()  # what is missing, lost or doubtful, and which figures it affects
    whole: bool = False  # findings, bars and conditions cover the whole window, not the steady part
    answer: str = ""  # one sentence each on what computes, the largest loss, and what its remedy would give
    charts: Callable[[], Charts] | None = None  # measures the charts when a page is written
    projected: Callable[[], pl.DataFrame] | None = None  # ranges on the GPU (PROJECTED) for a timeline
    host_time: HostTime | None = None  # what the host did in idle gaps, if the capture has evidence of it
    counters: Counters | None = None  # quantities over time, for the timeline
    events: PageSource | None = None  # the events of a capture in slices, in files; None if `trace` has them
    other_part: Callable[[], Analysis] | None = None  # None where the steady part is the window; see `parts`

    @property
    def figures(self) -> AnalysisFigures:
        """Figures for a notebook, as plotly objects: `analysis.figures.iterations()`."""
        from traceview.report.notebook import AnalysisFigures

        return AnalysisFigures(self)

    def _repr_html_(self) -> str:
        from traceview.report.notebook import analysis_html

        return analysis_html(self)

    def part(self, device: DeviceUse) -> DeviceFigures:
        """Return the part of a device's window that findings, bars and conditions cover."""
        return device if self.whole else device.steady

    def parts(self) -> tuple[Analysis, ...]:
        """Return this analysis and, if they differ, the one on the other of steady part and window, for a page."""
        return (self,) if self.other_part is None else (self, self.other_part())

    @property
    def program(self) -> Program:
        """The kind of the program."""
        return self.trace.program

    @property
    def nvtx(self) -> tuple[RangeUse, ...] | NotMeasured:
        """One row per name and domain of NVTX ranges, the busiest on the GPU first."""
        table = self.tables["nvtx"]
        return table.rows if table.not_measured is None else NotMeasured(table.not_measured)
