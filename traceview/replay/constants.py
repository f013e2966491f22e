"""The physical constants of predictions, with their sources.

Rates of copies, gaps and latencies are measured in the capture where possible; these constants are the fallback. No
constant is fitted to a pair of captures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Copies within the device, bytes/ns, read and written: 2026 GB/s in samples/trainer/graph.sqlite.
DEVICE_RATE = 2000.0
# Filling a pinned buffer on one host thread, bytes/ns. Pageable copies do the same and reach this rate.
STAGING_RATE = 9.4

LAUNCH_LATENCY = 6_000  # ns, from the start of a launch call to the kernel's start on an idle GPU (H200: 5 to 8 µs)
GRAPH_GAP = 400  # ns, between kernels of a graph (H200: 0.1 to 0.7 µs where kernels are short)
KERNEL_GAP = 1_500  # ns, between two kernels of a stream that were both launched in time (H200: 1.5 µs)
ASYNC_CALL = 12_000  # ns, cudaMemcpyAsync that does not wait (H200: 10 to 18 µs)
EVENT_CALL = 2_000  # ns, cudaEventRecord (H200: 1 to 4 µs)
SYNC_RETURN = 5_000  # ns, a synchronization with nothing to wait for (H200: 5 to 12 µs)
COPY_LATENCY = 15_000  # ns, from the start of cudaMemcpyAsync to the start of the copy on an idle engine
# Operations launched but not started on a stream before a launch call waits (H200: 1013 to 1016).
QUEUE_DEPTH = 1_014
LAUNCH_CALL = 5_000  # ns, a launch call that does not wait (H200: 4 to 5 µs)
GRAPH_LAUNCH = 10_000  # ns, cudaGraphLaunch of an empty graph
GRAPH_NODE = 300  # ns for each node of the graph (samples/trainer/graph.sqlite: 95 µs for 280 nodes)

# Bus bandwidth of NCCL all-reduces between GPUs of a host, in bytes/ns. Buckets of 25 to 35 MB reach 190 over the
# H200's NVLink (samples/trainer/ddp.sqlite: 253 MB in 1.32 ms; published nccl-tests results reach 360 with messages
# of 1 GB). A100: scaled by link rate, 600 to 900 GB/s. Others: PCIe 4.0 x16.
REDUCE_RATE: Mapping[str, float] = {"H200": 190.0, "H100": 190.0, "B200": 380.0, "A100": 125.0}
OTHER_REDUCE_RATE = 20.0
REDUCE_CALL = 20_000  # ns, an all-reduce of a few bytes
BUCKET_BYTES = 25 << 20  # bytes: DistributedDataParallel's bucket_cap_mb

# Kernels of the iterations that an analysis models, if one iteration does not have more.
MAX_MODELLED = 300_000


class PowerLimits(NamedTuple):
    """Power in W: the cap, at rest, and in addition while matrix products or other kernels run."""

    cap: float
    rest: float
    matrix: float
    other: float


# Measured by benchmarks/studies/power_and_copies.py (benchmarks/results/h200_power.json): matrix products of
# 8192 x 8192 bf16 and elementwise products of 512 MB, running 30 to 100% of the time. Above the cap, matrix products
# took sqrt(needed / cap) times as long (within 2%); other kernels did not slow down. GPUs without an entry are not
# slowed.
POWER_LIMITS: Mapping[str, PowerLimits] = {"NVIDIA H200": PowerLimits(700.0, 131.0, 870.0, 436.0)}


# Part of the power of these kernels that those of a capture draw, which does not hold it: from none (0) to all (1).
POWER = 0.5
# What a concurrent copy over the link adds to a gap between kernels in ns, and to the time of a kernel without matrix
# products as a fraction, because both use the memory's bandwidth (h200_power.json: 0.014; matrix products: 0.003).
BESIDE_COPY, BESIDE_SLOW = 1_500, 0.014
# Micro-batches on two streams: the time in ns of each kernel during which another stream's kernel can run, and the
# fraction of the gaps between kernels that is filled. A 2-layer model of width 2048 on an H200: 1,500 ns and 0.1.
ROOM, FILLED = 1_500, 0.25
# Slowdown of kernels during an all-reduce, as a fraction of its time; mostly gemms, which lose a wave
# (samples/trainer, ddp and prefetch: 0.39 ms a step for 1.32 ms on one rank, 0.66 for 2.33 on the rank that waits).
REDUCE_SLOW = 0.3
# Cost of a loop in ns for each round, besides its launches: making views before it, joining a list after it, and
# autograd's traversal of its nodes before and after the backward pass. Loops over 128 rows on an H200's host
# (benchmarks/studies/storms.py: rows, loss, mask): 300 to 2,400 each.
ELEMENT = 1_500
# Fraction of the loading time that remains with enough workers: they share cores and memory with the loop. On an
# H200's host, 14 workers left 9 of 156 ms of a ResNet-50's step.
LOADING_LEFT = 0.03
READING = 0.5  # fraction of the pause before a value is read, beyond the usual pause, that reading it takes (`item()`)
# The GPU times of two captures of a program differ by this fraction.
CAPTURE_NOISE = 0.02


def reduce_rate(gpu: str) -> float:
    """Return the bus bandwidth of all-reduces between GPUs of this name, in bytes/ns."""
    return next((rate for name, rate in REDUCE_RATE.items() if name in gpu), OTHER_REDUCE_RATE)


def power_limits(gpu: str) -> PowerLimits | None:
    """Return the power of a GPU of this name, None if it is unknown."""
    return next((limits for name, limits in POWER_LIMITS.items() if gpu.startswith(name)), None)
