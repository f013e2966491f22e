"""Rows of the tables of rates: matrix kernels by precision, the speed of light, and collectives."""

from __future__ import annotations

from traceview.frozen import frozen
from traceview.model.columns import column


@frozen
class MatrixPrecision:
    """Matrix products, convolutions and attention of one precision (docs/definitions.md "Speed of light")."""

    precision: str | None = column("text", "precision", "Type of the inputs, from the kernels' names.")
    tensor_core: bool | None = column("flag", "tensor cores", "Whether they use tensor cores, from their names.")
    count: int = column("count", "kernels", "Number of kernels.")
    total_ns: int = column("ns", "total", "Sum of their lengths.")
    share: float = column("fraction", "share", "Part of the summed time of all matrix kernels.")
    flops: int | None = column("flops", "FLOPs", "Their floating-point operations, of those that are known.")
    known_ns: int = column("ns", "known for", "Sum of the lengths of the kernels of calls whose FLOPs are known.")
    peak_flops_per_s: int | None = column("flops_per_s", "peak", "Dense peak of the GPU in this precision.")

    flops_per_s: int | None = column("flops_per_s", "rate", "FLOPs over the lengths of the kernels that do them.")
    of_peak: float | None = column("fraction", "of peak", "Rate over peak.")


@frozen
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
        "fraction", "known", "Part of the time of matrix kernels for which FLOPs are known; null for whole iterations."
    )
    unknown_because: str | None = column("text", "unknown because", "Why a figure of the row is null.")


@frozen
class Collective:
    """Communication kernels with equal messages (docs/definitions.md "Collectives"). What is unknown is None."""

    collective: str = column("text", "collective", "all_reduce, all_gather, ..., from the arguments or the name.")
    group: str | None = column("text", "group", "Process group or communicator.")
    parallelism: str | None = column("text", "parallelism", "TP, DP, PP, EP or CP, from the name of the group.")
    group_size: int | None = column("count", "ranks", "Number of ranks in the group.", merge="key")
    element_type: str | None = column("text", "type", "Type of the elements.")
    count: int = column("count", "count", "Number of kernels.")
    message_bytes: int | None = column("bytes", "message", "Size of one message, as nccl-tests define it.", merge="key")
    bytes: int | None = column("bytes", "size", "Sum of the messages.")
    total_ns: int = column("ns", "total", "Sum of the kernels' lengths, waits for late ranks included.")
    median_ns: int = column("ns", "median", "Median length, rounded down.", merge="none")
    min_ns: int = column("ns", "shortest", "Length of the shortest.", merge="min")
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
