"""Rows of the tables that measures declare: copies, communication, streams, calls, NVTX ranges."""

from __future__ import annotations

from collections.abc import Mapping

from traceview.frozen import frozen
from traceview.model.columns import column, derived
from traceview.units import time_range


def _ratio(part: int, total: int) -> float | None:
    return part / total if total else None


@frozen
class CopyOverlap:
    """Copies of one kind and memory, and their overlap with compute (docs/definitions.md "Overlap")."""

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


@frozen
class CommunicationOverlap:
    """Communication kernels, and their overlap with compute (docs/definitions.md "Overlap")."""

    count: int = column("count", "kernels", "Number of communication kernels.")
    busy_ns: int = column("ns", "busy", "Length of the union of the kernels.")
    overlapped_ns: int = column("ns", "overlapped", "Part of the busy time in which compute runs on the device.")
    exposed_ns: int = column("ns", "exposed", "Busy time less overlapped time.")

    @derived("fraction", "hidden", "Overlapped part of the busy time.")
    def hidden(self) -> float | None:
        return _ratio(self.overlapped_ns, self.busy_ns)


@frozen
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


@frozen
class ApiTotal:
    """Blocking calls of one name (docs/definitions.md "Synchronization")."""

    api: str = column("code", "call", "CUDA API function.")
    count: int = column("count", "count", "Number of calls.")
    blocked_ns: int = column("ns", "host blocked", "Time inside the calls.")
    waited_ns: int = column("ns", "GPU busy", "Part in which a GPU of the process is busy.")
    starved_ns: int = column("ns", "GPU idle", "Part in which no GPU of the process is busy.")
    idle_in_wait_ns: int = column("ns", "GPU idle in window", "Part of the GPU idle time that lies inside its window.")
    refill_ns: int = column("ns", "restart gap", "GPU idle time from the return to the next operation.")
    cost_ns: int = column("ns", "cost", "GPU idle time in the calls and restart gaps, at most the time they block.")


@frozen
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


CALLS = " > "  # between a function and the one that it calls


@frozen
class SourceLine:
    """A source line where the launching thread was while a GPU was idle (docs/definitions.md)."""

    file: str = column("text", "file", "File, relative to its package or to the program's folder; empty if unknown.")
    line: int = column("id", "line", "Line; the first one of the function in a trace of torch.profiler; 0 if unknown.")
    function: str = column("text", "function", "Function that contains the line.")
    until: str = column(
        "text",
        "until",
        "For time in which the thread held the interpreter lock unseen: the next line that was seen, while the row has "
        "the one before; else empty.",
    )
    stack: str = column("text", "stack", "Functions of libraries below the line, with the most of its time.")
    idle_ns: int = column("ns", "GPU idle", "Idle time of GPUs until the next launch, while the thread was here.")
    host_ns: int = column("ns", "outside CUDA calls", "Part of this idle time that has the cause `host`.")
    low_ns: int = column("ns", "low", "Lower end of the confidence interval of the idle time.")
    high_ns: int = column("ns", "high", "Upper end of the confidence interval of the idle time.")
    samples: int = column("count", "samples", "Number of stack samples, or of exactly known stacks.")
    node: int = -1  # row of HostEvidence.stacks: the stack with the most of its time

    @derived("text", "line", "File and line; function and file of native code.")
    def place(self) -> str:
        place = place_text(self.file, self.line) if self.line else f"{self.function} ({self.file})"
        return f"{place} to {self.until}" if self.until else place

    @derived("text", "inside", "Innermost of these functions.")
    def inner(self) -> str:
        return self.stack.rpartition(CALLS)[2]

    @derived("text", "interval", "Confidence interval of the idle time; empty if it is known exactly.")
    def interval(self) -> str:
        exact = self.low_ns == self.high_ns
        return "" if exact else time_range(self.low_ns, self.high_ns)


def place_text(file: str, line: int) -> str:
    """Return `train.py:305`; without a line, the file."""
    return f"{file}:{line}" if line else file
