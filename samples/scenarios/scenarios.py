r"""Small programs, each with one thing that few training runs have: what the captures beside this file were made of.

    nsys profile -t cuda,nvtx -s none --cpuctxsw=none -c cudaProfilerApi --capture-range-end=stop -o p2p \
        python scenarios.py p2p

With --cuda-graph-trace=node for the capture graph_nodes; the program graph_nodes without it is graph_whole.
Needs torch, nvtx and CUDA GPUs: two for p2p. Every program runs the same twelve iterations of little work.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import nvtx
import torch

ITERATIONS = 12
WARM_UP = 4
MEGABYTES = 1 << 18  # floats in a megabyte
Step = Callable[[], None]


def _check(code: int) -> None:
    if code:
        raise SystemExit(f"CUDA error {code}")


def many_streams() -> Step:
    """136 streams, more than torch's own pool has, each with a kernel and a copy."""
    runtime = torch.cuda.cudart()
    streams = []
    for _ in range(136):
        handle = ctypes.c_void_p()
        _check(int(runtime.cudaStreamCreate(ctypes.addressof(handle))))
        streams.append(torch.cuda.ExternalStream(handle.value))
    host = torch.ones(MEGABYTES // 4).pin_memory()
    batches = [torch.ones_like(host, device="cuda") for _ in streams]

    def step() -> None:
        for stream, batch in zip(streams, batches, strict=True):
            with torch.cuda.stream(stream):
                batch.copy_(host, non_blocking=True)
                batch.mul_(2)
        torch.cuda.synchronize()

    return step


def p2p() -> Step:
    """Copies from one GPU to another of the same process, beside compute on both."""
    first = torch.randn(16 * MEGABYTES, device="cuda:0")
    second = torch.empty_like(first, device="cuda:1")
    weights = [torch.randn(2048, 2048, device=f"cuda:{number}") for number in (0, 1)]

    def step() -> None:
        second.copy_(first, non_blocking=True)
        for weight in weights:
            weight @ weight
        for number in (0, 1):
            torch.cuda.synchronize(number)

    return step


def contexts() -> Step:
    """Three contexts on one GPU: torch's, and two more that copy and set memory."""
    driver = ctypes.CDLL("libcuda.so.1")
    weight = torch.randn(2048, 2048, device="cuda")
    size = 4 << 20
    host = ctypes.create_string_buffer(size)
    made = []
    for _ in range(2):
        context, memory = ctypes.c_void_p(), ctypes.c_uint64()
        try:
            _check(driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
        except AttributeError:
            _check(driver.cuCtxCreate_v4(ctypes.byref(context), None, 0, 0))
        _check(driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)))
        _check(driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))
        made.append((context, memory))

    def step() -> None:
        weight @ weight
        for context, memory in made:
            _check(driver.cuCtxPushCurrent_v2(context))
            _check(driver.cuMemcpyHtoD_v2(memory, host, ctypes.c_size_t(size)))
            _check(driver.cuMemsetD8_v2(memory, ctypes.c_ubyte(1), ctypes.c_size_t(size)))
            _check(driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))
        torch.cuda.synchronize()

    return step


def managed() -> Step:
    """Unified memory that the host and the GPU touch in turn: page faults and migrations."""
    import cupy

    with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
        data = cupy.ones(8 * MEGABYTES, dtype=cupy.float32)
    touched = (ctypes.c_float * data.size).from_address(data.data.ptr)

    def step() -> None:
        for place in range(0, data.size, MEGABYTES):
            touched[place] = 1.0
        cupy.add(data, 1, out=data)
        cupy.cuda.runtime.deviceSynchronize()

    return step


def green() -> Step:
    """Two parts of one GPU's multiprocessors, each a green context."""
    from torch.cuda.green_contexts import GreenContext

    weight = torch.randn(2048, 2048, device="cuda")
    parts = [GreenContext.create(32, 0) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in parts]

    def step() -> None:
        for part, stream in zip(parts, streams, strict=True):
            part.set_context()
            with torch.cuda.stream(stream):
                weight @ weight
            part.pop_context()
        torch.cuda.synchronize()

    return step


def graph_nodes() -> Step:
    """A CUDA graph of eight kernels, a copy and a memset."""
    host = torch.ones(4 * MEGABYTES).pin_memory()
    batch = torch.empty_like(host, device="cuda")
    weight = torch.randn(1024, 1024, device="cuda")
    total = torch.zeros(1024, device="cuda")

    def work() -> None:
        batch.copy_(host, non_blocking=True)
        total.zero_()
        hidden = weight
        for _ in range(7):
            hidden = torch.relu(hidden)
        total.add_(hidden.sum(0))

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def step() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return step


SCENARIOS = {one.__name__: one for one in (many_streams, p2p, contexts, managed, green, graph_nodes)}


def main() -> None:
    """Run the scenario that the command line names, the first iterations outside the capture."""
    step = SCENARIOS[sys.argv[1]]()
    for number in range(-WARM_UP, ITERATIONS):
        if number == 0:
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStart()
        with nvtx.annotate(f"iteration {number}"):
            step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main()
