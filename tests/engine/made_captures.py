"""Small made exports with everything that makes parts of a capture differ from the capture, drawn from a seed.

    make_capture(path, seed)

A capture is a loop of iterations on one or two GPUs and processes: copies, kernels, collectives, graphs traced whole or
as nodes (also both), events, waits and NVTX ranges. A seed adds clocks that are off, lost rows, rows of length 0,
ranges and calls that last for several iterations, loops of tiny kernels, and tables that are empty or missing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from tests.build_export import (
    Call,
    Copy,
    CudaDevice,
    Graph,
    Kernel,
    Memset,
    NamedStream,
    Nvtx,
    Overhead,
    Record,
    Stream,
    Sync,
    ThreadName,
    build_export,
)

MATRIX = "ampere_sgemm_128x64_tn"
CHAIN = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::gelu_functor<float>>(int)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda<float>>(int)",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8>(int)",
    MATRIX,
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_nn",
    "void cudnn::nchwToNhwcKernel<float>(int)",
    "void at::native::multi_tensor_apply_kernel<FusedAdam>(int)",
    "void at::native::elementwise_kernel<at::native::FillFunctor<float>>(int)",
)
COLLECTIVES = ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
OPTIONAL = ("overhead", "syncs", "records", "streams", "named_streams", "threads", "cuda_devices")
TABLES = {
    "memsets": "CUPTI_ACTIVITY_KIND_MEMSET",
    "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "graphs": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "nvtx": "NVTX_EVENTS",
    "overhead": "PROFILER_OVERHEAD",
    "syncs": "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
}


@dataclass
class _Process:
    """A process with its own clock of calls, which launches work to the streams of its devices."""

    chance: random.Random
    number: int
    devices: list[int]
    rows: dict[str, list[Any]]
    now: int
    traits: frozenset[str]
    busy: dict[tuple[int, int], int] = field(default_factory=dict)  # end of the work of each stream of a device
    correlation: int = 0

    def call(self, name: str, length: int, thread: int = 1) -> int:
        """Add a call, and return its correlation id. The clock stands at its end."""
        self.correlation += 1
        start = self.now + self.chance.choice((0, 0, 100, 900))
        self.rows["api"].append(
            Call(start, start + length, name, self.correlation, self.number * 10 + thread, self.number)
        )
        self.now = start + length
        return self.correlation

    def place(self, device: int, stream: int, length: int) -> dict[str, int]:
        """Return the columns of work that its stream begins after the last call and after earlier work."""
        start = max(self.now + self.chance.choice((-500, 200, 2_000)), self.busy.get((device, stream), 0))
        self.busy[device, stream] = start + length
        return {
            "start": start,
            "end": start + length,
            "stream": stream,
            "device": device,
            "process": self.number,
            "context": device + 1,
            "correlation": self.correlation,
        }

    def length(self, *lengths: int) -> int:
        """Return the length of an event; 0 or 1 ns where the capture has such."""
        return self.chance.choice((0, 1, *lengths) if "moments" in self.traits else lengths)

    def launch(self, device: int, stream: int, name: str, length: int) -> None:
        """Add the launch of a kernel, and its kernel unless it is lost."""
        self.call("cudaLaunchKernel_v7000", self.length(3_000, 6_000))
        if "lost kernels" not in self.traits or self.chance.random() < 0.8:
            self.rows["kernels"].append(Kernel(name=name, **self.place(device, stream, length)))

    def replay(self, device: int, stream: int) -> None:
        """Add a graph launch: traced whole, as nodes, or both."""
        self.call("cudaGraphLaunch_v10000", 4_000)
        place = self.place(device, stream, 30_000)
        if "graphs whole" in self.traits:
            self.rows["graphs"].append(Graph(graph=2, **place))
        if "graph nodes" in self.traits:
            gap = self.chance.choice((0, 1_000))
            for at in range(3):
                start = place["start"] + at * 10_000
                self.rows["kernels"].append(
                    Kernel(name=CHAIN[at], **{**place, "start": start, "end": start + 10_000 - gap})
                )

    def copy(self, device: int, stream: int, kind: int, pageable: bool) -> None:
        """Add a copy: `kind` 1 is H2D, 2 D2H, 8 D2D."""
        waits = pageable and kind != 8
        self.call("cudaMemcpyAsync_v3020", 20_000 if waits else 2_000)
        host, size = 0 if pageable else 1, self.chance.choice((4, 4096, 1 << 20))
        source, target = {1: (host, 2), 2: (2, host), 8: (2, 2)}[kind]
        place = self.place(device, stream, self.length(1_500, 25_000))
        self.rows["copies"].append(Copy(kind=kind, source=source, target=target, bytes=size, **place))
        if waits:
            self.now = max(self.now, place["end"] + 300)

    def wait(self, device: int, stream: int, name: str) -> None:
        """Add a call that waits for a stream."""
        until = self.busy.get((device, stream), self.now)
        self.call(name, max(until - self.now, 0) + 1_500)
        self.rows["syncs"].append(Sync(3, self.correlation, stream, process=self.number, context=device + 1))

    def range(self, start: int, end: int, text: str, thread: int = 1) -> None:
        """Add an NVTX range."""
        self.rows["nvtx"].append(Nvtx(start, end, text=text, thread=self.number * 10 + thread, process=self.number))


TRAITS = (
    "graphs whole",
    "graph nodes",
    "lost kernels",
    "lost calls",
    "late clock",
    "early clock",
    "two devices",
    "two processes",
    "collectives",
    "storms",
    "long ranges",
    "long calls",
    "pageable",
    "no ranges",
    "chains",
    "events",
    "idle end",
    "moments",
)


def make_capture(path: Path, seed: int) -> Path:
    """Write the capture of a seed, and return its path. The same seed gives the same capture."""
    chance = random.Random(seed)
    traits = frozenset(trait for trait in TRAITS if chance.random() < 0.35)
    rows: dict[str, list[Any]] = {name: [] for name in ("kernels", "copies", "memsets", "graphs", "api", "nvtx")}
    rows |= {name: [] for name in OPTIONAL}
    devices = [0, 1] if "two devices" in traits else [0]
    processes = [10, 20] if "two processes" in traits else [10]
    for at, number in enumerate(processes):
        own = devices if len(processes) == 1 else [devices[at % len(devices)]]
        _run(_Process(chance, number, own, rows, 1_000_000 + at * 7_000, traits))
    _describe(rows, processes, devices)
    _disturb(rows, chance, traits)
    if seed % 4 != 1:  # a table that is not in the order of time is read as a whole
        for name in ("kernels", "copies", "memsets", "graphs", "api"):
            rows[name].sort(key=attrgetter("start"))
    empty = [TABLES[name] for name in TABLES if not rows[name] and chance.random() < 0.5]
    return build_export(path, **rows, empty=empty, statements=_shapes(rows, traits))


def _run(process: _Process) -> None:
    chance, begin = process.chance, process.now
    for number in range(chance.choice((3, 12, 20))):
        start = process.now
        _iterate(process)
        if "no ranges" not in process.traits:
            process.range(start, process.now, f"iteration {number}")
        process.now += chance.choice((0, 5_000, 60_000))
        if "long calls" in process.traits and chance.random() < 0.2:
            device = process.devices[0]
            process.wait(device, 7, "cudaDeviceSynchronize")
    if "idle end" in process.traits:
        process.call("cudaFree_v3020", 2_000_000)
    if "long ranges" in process.traits:
        process.range(begin - 500, process.now + 500, "training")
        middle = (begin + process.now) // 2
        process.range(begin + 10_000, middle, "first half", thread=2)
        process.range(middle, middle, "moment")


def _iterate(process: _Process) -> None:
    chance, traits = process.chance, process.traits
    pageable = "pageable" in traits
    for device in process.devices:
        start = process.now
        process.copy(device, 13, 1, pageable)
        for _ in range(chance.choice((3, 6, 10))):
            _work(process, device)
        if "collectives" in traits:
            process.launch(device, 20, chance.choice(COLLECTIVES), chance.choice((5_000, 90_000)))
        if chance.random() < 0.5:
            process.copy(device, 7, 2, pageable)
        if chance.random() < 0.7:
            process.wait(device, 7, chance.choice(WAITS))
        if "no ranges" not in traits:
            process.range(start, process.now, chance.choice(("forward", "backward", "optimizer")))


def _work(process: _Process, device: int) -> None:
    chance, traits = process.chance, process.traits
    if "chains" in traits:
        for name in chance.sample(CHAIN[:5], 3):
            process.launch(device, 7, name, chance.choice((7_001, 33_333, 12_345)))
    process.launch(device, 7, chance.choice(CHAIN), process.length(2_000, 15_000, 80_001))
    if "storms" in traits and chance.random() < 0.1:
        for _ in range(120):
            process.launch(device, 7, CHAIN[3], 900)
    if traits & {"graphs whole", "graph nodes"} and chance.random() < 0.5:
        process.replay(device, 7)
    if chance.random() < 0.2:
        process.call("cudaMemsetAsync_v3020", 1_000)
        process.rows["memsets"].append(Memset(bytes=64, **process.place(device, 7, 1_000)))
    if "events" in traits:
        process.call("cudaEventRecord_v3020", 500)
        process.rows["records"].append(
            Record(1, process.correlation, chance.choice((7, 9)), process.number, device + 1)
        )


def _describe(rows: dict[str, list[Any]], processes: list[int], devices: list[int]) -> None:
    """Add the tables about streams, threads and devices."""
    for process in processes:
        rows["threads"].append(ThreadName("python3", process * 10 + 1, process))
        rows["overhead"].append(Overhead(1_100_000, 1_130_000))
        for device in devices:
            rows["cuda_devices"].append(CudaDevice(device, process, f"GPU-{device}", device))
            rows["streams"] += [Stream(stream, 2, process, device + 1) for stream in (7, 9, 13, 20)]
            rows["named_streams"].append(NamedStream("copies", 13, process, device + 1))


def _disturb(rows: dict[str, list[Any]], chance: random.Random, traits: frozenset[str]) -> None:
    """Shift the clock of a device, lose calls, and leave out optional tables."""
    shift = -400_000 if "early clock" in traits else 700_000 if "late clock" in traits else 0
    for name in ("kernels", "copies", "memsets", "graphs") if shift else ():
        rows[name] = [
            replace(row, start=row.start + shift, end=row.end + shift) if row.device == 0 else row for row in rows[name]
        ]
    if "lost calls" in traits:
        rows["api"] = [call for call in rows["api"] if chance.random() < 0.9]
    for name in OPTIONAL:
        if chance.random() < 0.3:
            rows[name] = []


def _shapes(rows: dict[str, list[Any]], traits: frozenset[str]) -> list[str]:
    """Return statements that give kernels grids and blocks, and the kernels of graphs their nodes."""
    if not rows["kernels"]:
        return []
    table, statements = "CUPTI_ACTIVITY_KIND_KERNEL", []
    for column in ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"):
        statements.append(f"ALTER TABLE {table} ADD COLUMN {column} INTEGER DEFAULT 1")
    statements.append(f"UPDATE {table} SET gridX = rowid % 5 + 1, blockX = 128")
    if "graph nodes" in traits:
        statements.append(f"ALTER TABLE {table} ADD COLUMN graphNodeId INTEGER")
    return statements
