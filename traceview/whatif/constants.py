"""Every physical constant that a prediction uses, in one place, with where it comes from.

What the capture itself holds is measured there (rates of its copies, gaps, latencies); these stand in where it
does not. None is fitted to a pair of captures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Pinned host memory to the GPU, bytes a ns, by the first name that fits: the rate that large copies reach, about 87%
# of the link's 63, 31.5 and 15.8 GB/s (PCIe 5.0, 4.0, 3.0 x16; NVLink-C2C: 450). 55.4 GB/s is measured on the H200
# (samples/trainer/pinned.sqlite).
PINNED_RATE: Mapping[str, float] = {
    "GB200": 350.0,
    "GH200": 350.0,
    "H200": 55.4,
    "H100": 55.0,
    "B200": 55.0,
    "A100": 25.0,
    "L40": 25.0,
    "A10": 25.0,
    "V100": 12.5,
    "T4": 12.5,
}
OTHER_PINNED_RATE = 25.0
# Copies within the device, bytes a ns, reading and writing: 2026 GB/s in samples/trainer/graph.sqlite.
DEVICE_RATE = 2000.0
# Filling a page-locked buffer on one host thread, bytes a ns: what pageable copies reach, which do the same.
STAGING_RATE = 9.4

LAUNCH_LATENCY = 6_000  # ns, from the start of a launch call to the kernel's on an idle GPU (H200, 5 to 8 µs)
KERNEL_GAP = 1_500  # ns, between two kernels of a stream that were both launched in time (H200, 1.5 µs)
ASYNC_CALL = 12_000  # ns, cudaMemcpyAsync that does not wait (H200, 10 to 18 µs)
EVENT_CALL = 2_000  # ns, cudaEventRecord (H200, 1 to 4 µs)
SYNC_RETURN = 5_000  # ns, a synchronization that finds nothing to wait for (H200, 5 to 12 µs)
COPY_LATENCY = 15_000  # ns, from the start of cudaMemcpyAsync to the copy's on an idle engine
# Operations of a stream that are launched and have not begun, before a launch call waits (H200: 1013 to 1016).
QUEUE_DEPTH = 1_014
LAUNCH_CALL = 5_000  # ns, a launch that has room (H200, 4 to 5 µs)
GRAPH_LAUNCH = 10_000  # ns, cudaGraphLaunch without nodes
GRAPH_NODE = 300  # ns a node on top (samples/trainer/graph.sqlite: 95 µs for 280 nodes)

# All-reduces of one host's GPUs by NCCL, bus bandwidth in bytes a ns: buckets of 25 to 35 MB reach 190 over the H200's
# NVLink (samples/trainer/ddp.sqlite: 253 MB in 1.32 ms; published nccl-tests reach 360 with messages of a GB). A100: by
# its links, 600 to 900 GB/s. Others: PCIe 4.0 x16.
REDUCE_RATE: Mapping[str, float] = {"H200": 190.0, "H100": 190.0, "B200": 380.0, "A100": 125.0}
OTHER_REDUCE_RATE = 20.0
REDUCE_CALL = 20_000  # ns, an all-reduce of next to nothing
BUCKET = 25 << 20  # bytes: DistributedDataParallel's bucket_cap_mb


@dataclass(frozen=True, slots=True)
class Power:
    """Watts: what a GPU may draw, draws at rest, and draws more while it runs matrix products or anything else."""

    cap: float
    rest: float
    matrix: float
    other: float


# benchmarks/power_and_copies.py, its figures in benchmarks/results/h200_power.json: products of 8192 x 8192 bf16 and
# multiplications of 512 MB, at 30 to 100% of the time. Above the cap, products took sqrt(needed / cap) as long (within
# 2%), the others no longer than before. GPUs that are not named are not slowed.
POWER: Mapping[str, Power] = {"NVIDIA H200": Power(700.0, 131.0, 870.0, 436.0)}


@dataclass(frozen=True, slots=True)
class Constants:
    """What is uncertain about a change: the middle, and what LOW and HIGH put in its place."""

    rate: float = 1.0  # times the pinned rate
    graph_gap: int = 500  # ns between kernels of a graph (H200: 0.1 to 0.7 µs where kernels are short)
    beside_copy: int = 1_500  # ns that a copy over the link adds to a gap between kernels meanwhile
    fused: float = 0.0  # of what a storm's repeats took on the GPU, the part that the fused kernel still takes
    # Of a kernel that multiplies no matrices, what it takes longer beside a copy: its share of the memory's bandwidth
    # (h200_power.json: 0.014; of products 0.003).
    beside_slow: float = 0.014
    # What the kernels draw, between nothing (0) and as much as those that were measured (1): a capture does not say.
    power: float = 0.5
    # Micro-batches on two streams: ns of each kernel in which it leaves room for another stream's, and the part of the
    # gaps between kernels that is filled. A 2-layer model of width 2048 on an H200: 1,500 ns, 0.1.
    room: int = 1_500
    filled: float = 0.25
    reduce_rate: float = 1.0  # times the all-reduce's bus bandwidth
    # Of an all-reduce's time, what kernels beside it take longer, gemms above all, which lose a wave (samples/trainer:
    # ddp against prefetch, 0.39 ms a step for 1.32 ms on one rank, 0.66 for 2.33 on the other, which waits in them).
    reduce_slow: float = 0.3
    # ns a round that a loop costs beside its launches: the views made before it, the list joined behind it, and
    # autograd's walk over its nodes before the backward pass and behind it. Loops over 128 rows on an H200's host
    # (benchmarks/storms.py: rows, loss, mask): 300 to 2,400 each.
    element: int = 1_500
    host: float = 1.0  # times the host's time between calls; it differs by 15% between captures of one program


MIDDLE = Constants()
LOW = Constants(
    rate=1.05, graph_gap=0, beside_copy=0, host=0.85, element=3_000, beside_slow=0, power=0, room=3_000, filled=1,
    reduce_rate=1.3, reduce_slow=0.15,
)  # fmt: skip
HIGH = Constants(
    rate=0.9, graph_gap=1_000, beside_copy=3_000, fused=0.5, host=1.15, element=0, beside_slow=0.03, power=1, room=0,
    filled=0, reduce_rate=0.7, reduce_slow=0.5,
)  # fmt: skip
# Two captures of the same program: their GPU times differ by this much.
NOISE = 0.02


def pinned_rate(gpu: str) -> float:
    """Return the rate in bytes a ns that pinned copies reach on a GPU of this name."""
    return next((rate for name, rate in PINNED_RATE.items() if name in gpu), OTHER_PINNED_RATE)


def reduce_rate(gpu: str) -> float:
    """Return the bus bandwidth in bytes a ns that all-reduces reach between GPUs of this name."""
    return next((rate for name, rate in REDUCE_RATE.items() if name in gpu), OTHER_REDUCE_RATE)


def power_of(gpu: str) -> Power | None:
    """Return what a GPU of this name draws; None where nobody measured it."""
    return next((one for name, one in POWER.items() if gpu.startswith(name)), None)
