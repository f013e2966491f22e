"""The results of an analysis: what every report shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from traceview.model.columns import Table, column, derived

if TYPE_CHECKING:

    from traceview.model.charts import Charts

from traceview.model.trace import ReportInfo, Trace, Window

# What an iteration is made of, in ns, besides its idle time by cause.
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
CAUSES = (
    "profiler",
    "queued",
    "launch",
    "sync",
    "blocking_copy",
    "memory",
    "api",
    "host",
    "unknown",
)
SEVERITIES = ("high", "medium", "low", "info")


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Absent data is neither an error nor a zero: it is a reason that every report shows."""

    reason: str


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class CopyOverlap:
    """Copies of one kind and memory against compute (docs/definitions.md "Overlap")."""

    kind: str = column("text", "kind", "Direction of the copy, from copyKind.")
    memory: str = column("text", "memory", "Memory of the host's side, from srcKind or dstKind.")
    count: int = column("count", "count", "Number of copies.")
    bytes: int = column("bytes", "size", "Bytes copied.")
    busy_ns: int = column("ns", "busy", "Length of the union of the copies.")
    overlapped_ns: int = column("ns", "overlapped", "Part of the busy time in which compute runs on the device.")
    exposed_ns: int = column("ns", "exposed", "Busy time less overlapped time.")

    @derived("text", "kind", "Kind and memory.")
    def label(self) -> str:
        return f"{self.kind} {self.memory}"

    @derived("bytes_per_ns", "bandwidth", "Bytes over busy time.")
    def bandwidth(self) -> float | None:
        return _ratio(self.bytes, self.busy_ns)

    @derived("fraction", "hidden", "Overlapped part of the busy time.")
    def hidden(self) -> float | None:
        return _ratio(self.overlapped_ns, self.busy_ns)


@dataclass(frozen=True, slots=True)
class CommunicationOverlap:
    """Communication kernels against compute (docs/definitions.md "Overlap")."""

    count: int = column("count", "kernels", "Number of communication kernels.")
    busy_ns: int = column("ns", "busy", "Length of the union of the kernels.")
    overlapped_ns: int = column("ns", "overlapped", "Part of the busy time in which compute runs on the device.")
    exposed_ns: int = column("ns", "exposed", "Busy time less overlapped time.")

    @derived("fraction", "hidden", "Overlapped part of the busy time.")
    def hidden(self) -> float | None:
        return _ratio(self.overlapped_ns, self.busy_ns)


@dataclass(frozen=True, slots=True)
class Gap:
    """One idle gap with the ns of each cause; they add up to its length."""

    start_ns: int
    end_ns: int
    causes: Mapping[str, int]  # every cause of CAUSES, in that order
    next_operation: str | None  # the name of the operation that ends it
    thread: int | None  # row of Trace.threads: who launched that operation
    range: str | None  # innermost NVTX range open there in the middle of the wait

    @property
    def cause(self) -> str:
        """The cause of most of it."""
        return max(self.causes, key=lambda name: self.causes[name])


@dataclass(frozen=True, slots=True)
class Gaps:
    """Idle gaps of one device or stream.

    `frame` has one row a gap: start, end, operation (row of Trace.operations, null at the end of a
    window), thread (row of Trace.threads or null) and one Int64 column for each of CAUSES. Gaps of a
    stream have three more causes, tried first: other_compute, other_communication, other_copy (ns). Theirs are
    sums alone: nothing lists the gaps of streams, which would take as much memory again, and `frame` is empty.
    """

    count: int
    total_ns: int
    causes: Mapping[str, int]
    frame: pl.DataFrame
    longest: tuple[Gap, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamUse:
    """One stream (docs/definitions.md "Identity", "Idle gaps"). `stream` is a row of Trace.streams."""

    stream: int
    id: int = column("id", "id", "CUDA's id of the stream.")
    process_id: int = column("id", "process", "Process that owns the stream.")
    context_id: int = column("id", "context", "CUDA context of the stream.")
    label: str = column("text", "stream", "Name of the stream, from NVTX where the program names it.")
    kernel_count: int = column("count", "kernels", "Number of kernels.")
    copy_count: int = column("count", "copies", "Number of copies.")
    operation_count: int = column("count", "operations", "Number of kernels, graphs, copies and memsets.")
    bytes: int = column("bytes", "size", "Bytes copied.")
    busy_ns: int = column("ns", "busy", "Length of the union of all operations.")
    compute_ns: int = column("ns", "compute", "Length of the union of compute.")
    communication_ns: int = column("ns", "communication", "Length of the union of communication kernels.")
    copy_ns: int = column("ns", "copying", "Length of the union of copies.")
    gap_count: int = column("count", "gaps", "Number of idle gaps between the stream's first and last operation.")
    gap_ns: int = column("ns", "in gaps", "Sum of the idle gaps.")
    causes: Mapping[str, int] = column("causes", "causes", "Nanoseconds of the gaps by cause.")


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One GPU: what it did, what it hid and why it waited."""

    device: int  # row of Trace.devices
    id: str
    name: str
    process_ids: tuple[int, ...]
    window: Window
    kernel_count: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    idle_ns: int
    gaps: Gaps
    tables: Mapping[str, Table]  # every measure of MEASURES that is taken per device, by name

    @property
    def copies(self) -> tuple[CopyOverlap, ...]:
        """One row for each (kind, memory) pair."""
        return self.tables["copies"].rows

    @property
    def communication(self) -> CommunicationOverlap:
        """The communication kernels."""
        return self.tables["communication"].rows[0]  # type: ignore[no-any-return]

    @property
    def streams(self) -> tuple[StreamUse, ...]:
        """One row for each stream."""
        return self.tables["streams"].rows


@dataclass(frozen=True, slots=True)
class ApiTotal:
    """Blocking calls of one name (docs/definitions.md "Synchronization")."""

    api: str = column("code", "call", "CUDA API function.")
    count: int = column("count", "count", "Number of calls.")
    blocked_ns: int = column("ns", "host blocked", "Time inside the calls.")
    waited_ns: int = column("ns", "GPU busy", "Part in which a GPU of the process is busy.")
    starved_ns: int = column("ns", "GPU idle", "Part in which no GPU of the process is busy.")
    refill_ns: int = column("ns", "restart gap", "GPU idle time from the return to the next operation.")

    @derived("ns", "cost", "GPU idle time inside the calls and in the restart gaps.")
    def cost_ns(self) -> int:
        return self.starved_ns + self.refill_ns


@dataclass(frozen=True, slots=True)
class SyncUse:
    """Blocking calls (docs/definitions.md "Synchronization").

    `frame`: one row a call: start, end, name, thread, process, api (row of Trace.api), blocked,
    waited, starved, refill (ns).
    """

    count: int
    blocked_ns: int
    waited_ns: int
    starved_ns: int
    refill_ns: int
    calls: tuple[ApiTotal, ...]
    frame: pl.DataFrame


@dataclass(frozen=True, slots=True)
class HostUse:
    """Explicit synchronizations, and calls that block although their name does not say so."""

    sync: SyncUse
    implicit_sync: SyncUse


@dataclass(frozen=True, slots=True)
class RangeUse:
    """One NVTX range name, projected on the GPU (docs/definitions.md "NVTX projected on the GPU")."""

    name: str = column("text", "name", "Name of the range.")
    domain: str = column("text", "domain", "NVTX domain; empty for the default domain.")
    count: int = column("count", "count", "Number of ranges with this name.")
    host_ns: int = column("ns", "host", "Sum of the ranges' lengths on the host.")
    gpu_busy_ns: int = column("ns", "GPU busy", "Length of the union of the operations launched inside.")
    gpu_span_ns: int = column("ns", "GPU span", "First start to last end of all operations launched inside.")
    gpu_span_each_ns: int = column("ns", "GPU spans", "First start to last end, range by range, added up.")
    kernel_count: int = column("count", "kernels", "Kernels launched inside.")
    operation_count: int = column("count", "operations", "Operations launched inside.")
    via_process_count: int = column(
        "count", "via process", "Operations attributed through the thread of the process that carries the annotations."
    )

    @derived("text", "range", "Name, with its domain.")
    def label(self) -> str:
        return f"{self.name} ({self.domain})" if self.domain else self.name


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration; GPU figures are clipped to [start, end) and summed over `devices`."""

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
    idle: Mapping[str, int]  # by cause
    blocked_ns: int
    kernel_count: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and tails in ns; linear interpolation between ranks, rounded down."""

    median: int
    p5: int
    p95: int


@dataclass(frozen=True, slots=True)
class Iterations:
    """docs/definitions.md "Iterations"."""

    range: str
    thread: int
    process_id: int
    count: int  # all of them, the skipped ones included
    skipped: int
    skipped_why: str
    wall_ns: Spread
    spreads: Mapping[str, Spread]  # one for each ns field of Iteration
    per_iteration: tuple[Iteration, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """One place in the capture that shows a finding: where the timeline goes on a click."""

    text: str
    start_ns: int
    end_ns: int
    device: str | None = None
    stream: int | None = None  # row of Trace.streams
    thread: int | None = None  # row of Trace.threads


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict on measurements: a symptom, what it cost, and what to change."""

    id: str
    severity: str
    title: str
    evidence: tuple[Place, ...]
    cost_ns: int  # counted once: a device's findings never exceed its idle plus exposed time
    advice: str
    code: str = ""  # the line to write
    device: str | None = None
    cost_fraction: float = 0.0  # of the device's window
    cost_per_iteration_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Unmatched:
    """GPU work whose launch is not in the capture; unified-memory copies never have one."""

    kernels: int
    copies: int
    memsets: int
    graphs: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything a report shows."""

    info: ReportInfo
    trace: Trace
    devices: tuple[DeviceUse, ...]
    host: HostUse
    tables: Mapping[str, Table]  # every measure of MEASURES that is taken of the whole capture, by name
    iterations: Iterations | NotMeasured
    unmatched: Unmatched
    findings: tuple[Finding, ...] = field(default=())
    notes: tuple[str, ...] = ()  # what could not be measured, and how to capture it
    charts: Callable[[], Charts] | None = None  # measures what only charts show, when a page asks for it
    projected: Callable[[], pl.DataFrame] | None = None  # ranges on the GPU (PROJECTED), when a timeline asks for them

    @property
    def nvtx(self) -> tuple[RangeUse, ...] | NotMeasured:
        """One row for each name and domain of NVTX ranges, the busiest on the GPU first."""
        table = self.tables["nvtx"]
        return table.rows if table.not_measured is None else NotMeasured(table.not_measured)
