"""Rows of the tables that measures declare: copies, communication, streams, calls, NVTX ranges, kernels and rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traceview.model.columns import column, derived
from traceview.model.frozen import dataclass
from traceview.model.units import duration, time_range


def _ratio(ns: int, total: int) -> float | None:
    return ns / total if total else None


MIN_CAUSE = 0.05  # share of the exposed time from which a table names a cause
MAX_CAUSES = 3


def largest_causes(row: Any) -> str:
    """Return the causes with most of a row's exposed time: "launched_late 9.80 ms, kernel_gap 512 µs"."""
    causes: Mapping[str, int] = row.exposed_causes
    large = (name for name in causes if causes[name] > MIN_CAUSE * row.exposed_ns)
    first = sorted(large, key=lambda name: -causes[name])[:MAX_CAUSES]
    return ", ".join(f"{name} {duration(causes[name])}" for name in first)


@dataclass(frozen=True, slots=True)
class CopyOverlap:
    """Copies of one kind and memory, and their overlap with compute (docs/definitions.md "Overlap")."""

    kind: str = column("text", "kind", "Direction of the copy, from copyKind.")
    memory: str = column("text", "memory", "Memory of the host's side, from srcKind or dstKind.")
    count: int = column("count", "count", "Number of copies.")
    bytes: int = column("bytes", "size", "Bytes copied.")
    busy_ns: int = column("ns", "busy", "Length of the union of the copies.")
    overlapped_ns: int = column("ns", "overlapped", "Busy time in which compute runs on the device.")
    exposed_ns: int = column("ns", "exposed", "Busy time less overlapped time.")
    exposed_causes: Mapping[str, int] = column("causes", "exposed by cause", "Nanoseconds of exposed_ns by cause.")

    because = derived("text", "exposed because", "The largest causes of the exposed time.")(largest_causes)

    @derived("text", "kind", "Kind and memory.")
    def label(self) -> str:
        return f"{self.kind} {self.memory}"

    @derived("bytes_per_ns", "bandwidth", "Bytes over busy time.")
    def bandwidth(self) -> float | None:
        return _ratio(self.bytes, self.busy_ns)

    @derived("fraction", "hidden", "Overlapped share of the busy time.")
    def hidden(self) -> float | None:
        return _ratio(self.overlapped_ns, self.busy_ns)


@dataclass(frozen=True, slots=True)
class CommunicationOverlap:
    """Communication kernels, and their overlap with compute (docs/definitions.md "Overlap")."""

    count: int = column("count", "kernels", "Number of communication kernels.")
    busy_ns: int = column("ns", "busy", "Length of the union of the kernels.")
    overlapped_ns: int = column("ns", "overlapped", "Busy time in which compute runs on the device.")
    exposed_ns: int = column("ns", "exposed", "Busy time less overlapped time.")
    exposed_causes: Mapping[str, int] = column("causes", "exposed by cause", "Nanoseconds of exposed_ns by cause.")
    blocking_ns: int = column("ns", "blocking", "Busy time in which launched work of another stream waits for its end.")
    waiting_for_ranks_ns: int | None = column(
        "ns", "waits for ranks", "Busy time before the last rank starts the collective; null if the others are unknown."
    )
    exposed_waiting_for_ranks_ns: int | None = column(
        "ns", "exposed waits for ranks", "The exposed part of waiting_for_ranks_ns."
    )
    contention_ns: int | None = column(
        "ns", "price", "How much longer compute kernels take beside communication; null if none runs alone, too."
    )
    contention_low_ns: int | None = column("ns", "price, at least", "Lower end of the 95% interval of contention_ns.")
    contention_high_ns: int | None = column("ns", "price, at most", "Upper end of the 95% interval of contention_ns.")
    because = derived("text", "exposed because", "The largest causes of the exposed time.")(largest_causes)

    @derived("fraction", "hidden", "Overlapped share of the busy time.")
    def hidden(self) -> float | None:
        return _ratio(self.overlapped_ns, self.busy_ns)


@dataclass(frozen=True, slots=True)
class Contention:
    """What kernels pay for running beside other work (docs/definitions.md "The price of overlap")."""

    beside: str = column("text", "beside", "communication, or copies to and from the host and other GPUs.")
    kernel: str = column("text", "kernel", "The kernel's label; (all kernels) is the sum.")
    by: str = column(
        "text",
        "alike by",
        "place: the instances have the same launch shape and neighbours on their stream; shape: the same launch shape.",
    )
    count: int = column("count", "beside", "Instances that lie at least 90% beside the work.")
    alone_count: int = column("count", "alone", "Instances beside neither communication nor copies.")
    mean_ns: int | None = column("ns", "mean beside", "Mean length beside the work.")
    alone_median_ns: int | None = column("ns", "median alone", "Median length alone.")
    contention_ns: int = column("ns", "price", "Sum of the lengths beside the work, each less the median alone.")
    low_ns: int = column("ns", "at least", "Lower end of the 95% interval of the price (bootstrap).")
    high_ns: int = column("ns", "at most", "Upper end of the 95% interval of the price.")


@dataclass(frozen=True, slots=True)
class QueuedFor:
    """What launched work waits for while its GPU is idle (docs/definitions.md "Launched work that waits")."""

    kind: str = column(
        "text",
        "waits for",
        "kernel, collective, copy or memset of another stream, copy engine, process, device, call, next operation (the "
        "GPU's own step from one operation of a stream to the next) or unknown.",
    )
    name: str = column("text", "name", "Name of the operation, process, GPU or CUDA call; empty if there is none.")
    ns: int = column("ns", "idle", "Idle time with the cause queued.")


@dataclass(frozen=True, slots=True)
class QueueLength:
    """How many operations are launched and not started when the host launches one, and how late an operation starts."""

    median: int = column("count", "median", "Median over the launches.")
    p95: int = column("count", "p95", "95th percentile over the launches.")
    median_delay_ns: int = column(
        "ns", "delay", "Median from the end of the launch call to the start of the operation."
    )
    p95_delay_ns: int = column("ns", "delay p95", "95th percentile of this delay.")


@dataclass(frozen=True, slots=True)
class StreamUse:
    """One stream (docs/definitions.md "Identity", "Idle gaps"). `stream` is a row of Trace.streams."""

    stream: int
    id: int = column("id", "id", "CUDA's id of the stream.")
    process_id: int = column("id", "process", "Process that owns the stream.")
    context_id: int = column("id", "context", "CUDA context of the stream.")
    label: str = column("text", "stream", "Name of the stream, from NVTX where the program names it.")
    purpose: str = column(
        "text",
        "purpose",
        "What takes a tenth of its work or more: compute, communication, with the parallelism if its process groups "
        "name one (TP, PP, DP, EP, CP), copy in (all copies are h2d), copy out (d2h) or copy; empty for memsets alone.",
    )
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


@dataclass(frozen=True, slots=True)
class ApiTotal:
    """Blocking calls of one name (docs/definitions.md "Synchronization")."""

    api: str = column("code", "call", "CUDA API function.")
    count: int = column("count", "count", "Number of calls.")
    blocked_ns: int = column("ns", "host blocked", "Time inside the calls.")
    waited_ns: int = column("ns", "GPU busy", "Time in which a GPU of the process is busy.")
    starved_ns: int = column("ns", "GPU idle", "Time in which no GPU of the process is busy.")
    idle_in_wait_ns: int = column("ns", "GPU idle in window", "GPU idle time that lies inside its window.")
    refill_ns: int = column("ns", "restart gap", "GPU idle time from the return to the next operation.")
    cost_ns: int = column("ns", "cost", "GPU idle time in the calls and restart gaps, at most the time they block.")


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


CALLS = " > "  # between a function and the one that it calls


@dataclass(frozen=True, slots=True)
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
    host_ns: int = column("ns", "outside CUDA calls", "Idle time that has the cause `host`.")
    low_ns: int = column("ns", "low", "Lower end of the confidence interval of the idle time.")
    high_ns: int = column("ns", "high", "Upper end of the confidence interval of the idle time.")
    samples: int = column("count", "samples", "Number of stack samples, or of exactly known stacks.")
    node: int = -1  # row of HostEvidence.stacks: the stack with the most of its time

    @derived("text", "line", "File and line; function and file of native code.")
    def place(self) -> str:
        native = f"{self.function} ({self.file})" if self.file else self.function
        place = place_text(self.file, self.line) if self.line else native
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


def size_text(sizes: tuple[int, ...] | None) -> str | None:
    """Return "16x4" for (16, 4, 1)."""
    if sizes is None:
        return None
    last = max((place for place, size in enumerate(sizes) if size != 1), default=0)
    return "x".join(str(size) for size in sizes[: last + 1])


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Kernels of one name and launch shape. None stands for data that the capture or the name does not contain."""

    name: str = column("code", "short name", "Name without namespaces, templates and parameters.")
    demangled: str | None = column("code", "full name", "Name with namespaces, templates and parameters.")
    label: str = column(
        "code",
        "kernel",
        "Short name; of a generic kernel with, or instead of it, the function that its template names.",
    )
    family: str | None = column("text", "family", "What the kernel computes, from its name.")
    precision: str | None = column("text", "precision", "Type of its inputs, from its name.")
    tensor_core: bool | None = column("flag", "tensor cores", "Whether it uses tensor cores, from its name.")
    count: int = column("count", "count", "Number of kernels.")
    total_ns: int = column("ns", "total", "Sum of their lengths.")
    mean_ns: int = column("ns", "mean", "Total over count, rounded down.")
    min_ns: int = column("ns", "shortest", "Length of the shortest.")
    max_ns: int = column("ns", "longest", "Length of the longest.")
    share: float = column("fraction", "share", "Share of the summed kernel time of the device.")
    grid: tuple[int, ...] | None = column("size", "grid", "Blocks in x, y and z.")
    block: tuple[int, ...] | None = column("size", "block", "Threads of a block in x, y and z.")
    registers: int | None = column("count", "registers", "Registers of a thread.")
    shared_bytes: int | None = column("bytes", "shared memory", "Static and dynamic shared memory of a block.")
    blocks_per_sm: float | None = column("ratio", "blocks per SM", "Blocks over the device's SMs.")
    waves: float | None = column("ratio", "waves", "Blocks over the blocks that the device holds at once.")
    occupancy: float | None = column("fraction", "occupancy", "Resident warps over the warps that an SM can hold.")
    occupancy_limit: str | None = column("text", "limited by", "What limits the occupancy; - where nothing does.")
    limiter: str | None = column("text", "limiter", "compute, memory or latency, as Nsight Compute says (--with).")
    compute_fraction: float | None = column("fraction", "of compute", "Throughput over the peak of the SMs, from ncu.")
    memory_fraction: float | None = column("fraction", "of memory", "Throughput over the peak of the memory, from ncu.")

    @derived("text", "grid", "Blocks in x, y and z.")
    def grid_text(self) -> str | None:
        return size_text(self.grid)


@dataclass(frozen=True, slots=True)
class KernelPlace:
    """Kernels of one name that one place in the program launches. None stands for data that the capture lacks."""

    kernel: str = column("code", "kernel", "Name, as `label` in the table of kernels.")
    family: str | None = column("text", "family", "What the kernel computes, from its name.")
    range: str | None = column(
        "text", "range", "Innermost NVTX range at the launch that is neither an op nor a module, without its counter."
    )
    module: str | None = column(
        "text", "module", "Path of the module; for a backward kernel, the module of its forward."
    )
    op: str | None = column(
        "code", "op", "Outermost op below the module; for a backward kernel, the op of its forward."
    )
    inner_op: str | None = column("code", "inner op", "Innermost op at the launch.")
    line: str | None = column("code", "line", "Innermost Python function outside torch: file, line, name.")
    direction: str | None = column("text", "direction", "forward, backward or optimizer.")
    count: int = column("count", "count", "Number of kernels.")
    total_ns: int = column("ns", "total", "Sum of their lengths.")
    share: float = column("fraction", "share", "Share of the summed kernel time of the device.")


@dataclass(frozen=True, slots=True)
class ModuleUse:
    """Kernels of one op in one module, in one direction. None stands for data that the capture lacks."""

    place: str = column("text", "module and op", "Path of the module, and the outermost op below it.")
    direction: str | None = column("text", "direction", "forward, backward or optimizer.")
    count: int = column("count", "kernels", "Number of kernels.")
    total_ns: int = column("ns", "total", "Sum of their lengths.")
    share: float = column("fraction", "share", "Share of the summed kernel time of the device.")


@dataclass(frozen=True, slots=True)
class KernelFamily:
    """Kernels of one family."""

    family: str = column("text", "family", "What the kernels compute, from their names.")
    count: int = column("count", "count", "Number of kernels.")
    total_ns: int = column("ns", "total", "Sum of their lengths.")
    busy_ns: int = column("ns", "busy", "Length of the union of the kernels.")


@dataclass(frozen=True, slots=True)
class MatrixPrecision:
    """Matrix products, convolutions and attention of one precision (docs/definitions.md "Speed of light")."""

    precision: str | None = column("text", "precision", "Type of the inputs, from the kernels' names.")
    tensor_core: bool | None = column("flag", "tensor cores", "Whether they use tensor cores, from their names.")
    count: int = column("count", "kernels", "Number of kernels.")
    total_ns: int = column("ns", "total", "Sum of their lengths.")
    share: float = column("fraction", "share", "Share of the summed time of all matrix kernels.")
    flops: int | None = column("flops", "FLOPs", "Their floating-point operations, of those that are known.")
    known_ns: int = column("ns", "known for", "Sum of the lengths of the kernels of calls whose FLOPs are known.")
    peak_flops_per_s: int | None = column("flops_per_s", "peak", "Dense peak of the GPU in this precision.")

    flops_per_s: int | None = column("flops_per_s", "rate", "FLOPs over the lengths of the kernels that do them.")
    of_peak: float | None = column("fraction", "of peak", "Rate over peak.")


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """The calls of an op with one shape (docs/definitions.md "Efficiency by shape"). What is unknown is None."""

    op: str = column("text", "op", "The op of PyTorch.")
    shape: str | None = column("text", "shape", "Sizes and types of what it multiplies.")
    precision: str | None = column("text", "precision", "Type of the inputs, from the kernels' names or the shape.")
    count: int = column("count", "calls", "Number of calls.")
    total_ns: int = column("ns", "total", "Sum of the lengths of their kernels.")
    share: float = column("fraction", "share", "Share of the summed time of all rows.")
    flops: int | None = column("flops", "FLOPs", "Their floating-point operations.")
    bytes: int | None = column("bytes", "bytes", "Inputs and outputs, each read or written once.")
    flops_per_s: int | None = column("flops_per_s", "rate", "FLOPs over total.")
    of_peak: float | None = column("fraction", "of peak", "Rate over the dense peak of the GPU in this precision.")
    of_memory_rate: float | None = column("fraction", "of memory", "Bandwidth over the rate of the GPU's memory.")
    note: str | None = column("text", "note", "Why a rate is above a peak.")

    @derived("ratio", "FLOP/byte", "FLOPs over bytes.")
    def intensity(self) -> float | None:
        return _ratio(self.flops or 0, self.bytes or 0)

    @derived("bytes_per_ns", "bandwidth", "Bytes over total.")
    def bandwidth(self) -> float | None:
        return _ratio(self.bytes, self.total_ns) if self.bytes else None


@dataclass(frozen=True, slots=True)
class SpeedOfLight:
    """How fast a GPU computes in its steady part, and how fast it could (docs/definitions.md "Speed of light")."""

    device: str = column("text", "device", "The GPU.")
    source: str | None = column("text", "FLOPs from", "shapes, mark or option.")
    count: int = column("count", "counted", "Counted iterations; without iterations, matrix kernels.")
    time_ns: int = column("ns", "time", "Mean time of an iteration; without iterations, length of the window.")
    flops: int | None = column("flops", "FLOPs", "Floating-point operations in this time.")
    flops_per_s: int | None = column("flops_per_s", "rate", "FLOPs over this time.")
    precision: str | None = column("text", "precision", "Precision of most of the time of matrix kernels.")
    peak_flops_per_s: int | None = column("flops_per_s", "peak", "Dense peak of the GPU in this precision.")
    mfu: float | None = column("fraction", "of peak", "Rate over peak: the model FLOPs utilisation.")
    tf32_peak_flops_per_s: int | None = column("flops_per_s", "TF32 peak", "Peak with TF32, for FP32 programs.")
    bf16_peak_flops_per_s: int | None = column("flops_per_s", "bf16 peak", "Peak with bfloat16, for FP32 programs.")
    at_peak_ns: int | None = column("ns", "at peak", "Time that the FLOPs take at the peaks of their precisions.")
    known_fraction: float | None = column(
        "fraction", "known", "Share of the time of matrix kernels for which FLOPs are known; null for whole iterations."
    )
    unknown_because: str | None = column("text", "unknown because", "Why a figure of the row is null.")


@dataclass(frozen=True, slots=True)
class Collective:
    """Communication kernels with equal messages (docs/definitions.md "Collectives"). What is unknown is None."""

    collective: str = column("text", "collective", "all_reduce, all_gather, ..., from the arguments or the name.")
    group: str | None = column("text", "group", "Process group or communicator.")
    parallelism: str | None = column("text", "parallelism", "TP, DP, PP, EP or CP, from the name of the group.")
    group_size: int | None = column("count", "ranks", "Number of ranks in the group.")
    element_type: str | None = column("text", "type", "Type of the elements.")
    count: int = column("count", "count", "Number of kernels.")
    message_bytes: int | None = column("bytes", "message", "Size of one message, as nccl-tests define it.")
    bytes: int | None = column("bytes", "size", "Sum of the messages.")
    total_ns: int = column("ns", "total", "Sum of the kernels' lengths, waits for late ranks included.")
    median_ns: int = column("ns", "median", "Median length, rounded down.")
    min_ns: int = column("ns", "shortest", "Length of the shortest.")
    busy_ns: int = column("ns", "busy", "Time of the kernels in which no earlier communication kernel runs.")
    exposed_ns: int = column("ns", "exposed", "The part of the busy time in which nothing computes.")
    exposed_causes: Mapping[str, int] = column("causes", "exposed by cause", "Nanoseconds of exposed_ns by cause.")
    bus_factor: float | None = column("ratio", "bus factor", "Bus bandwidth over algorithm bandwidth.")

    algorithm_bandwidth: float | None = column(
        "bytes_per_ns", "alg. median", "Algorithm bandwidth at the median length: message over length, bytes per ns."
    )
    bus_bandwidth: float | None = column("bytes_per_ns", "bus median", "Bus bandwidth at the median length.")
    best_bus_bandwidth: float | None = column(
        "bytes_per_ns", "bus best", "Bus bandwidth of the shortest kernel, which waits least."
    )
    mean_bus_bandwidth: float | None = column(
        "bytes_per_ns", "bus mean", "Bus bandwidth at the mean length, waits included."
    )
    because = derived("text", "exposed because", "The largest causes of the exposed time.")(largest_causes)


@dataclass(frozen=True, slots=True)
class ExposedRange:
    """Exposed time of one kind of work that one NVTX range launches (docs/definitions.md "Exposed time by cause")."""

    range: str | None = column("text", "range", "Innermost range at the launch, without its counter.")
    work: str = column("text", "work", "communication, memset, or the kind and the memory of copies.")
    count: int = column("count", "count", "Operations that have exposed time.")
    exposed_ns: int = column("ns", "exposed", "Time in which they run and nothing computes; each ns counts once.")
    exposed_causes: Mapping[str, int] = column("causes", "exposed by cause", "Nanoseconds of exposed_ns by cause.")
    because = derived("text", "exposed because", "The largest causes of the exposed time.")(largest_causes)
