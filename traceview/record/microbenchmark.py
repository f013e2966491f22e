"""Time the CUDA and NVTX calls of this machine: `python -m traceview.record.microbenchmark FILE`, also under nsys.

Calls are timed in tight loops. The stream is empty at the start of a batch, and a batch never fills its queue, so a
call waits for nothing but itself. Times are ns for a call, with the loop around it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from ctypes import byref, c_float
from pathlib import Path
from statistics import median
from time import perf_counter_ns

from traceview.record.cuda_calls import (
    CudaError,
    Gpu,
    NamedCall,
    driver_calls,
    newer_driver_calls,
    runtime_calls,
)
from traceview.record.nvtx_calls import Nvtx

ROUNDS, CALLS = 21, 100  # batches of each call, calls in a batch
SPIN_CYCLES = 40_000_000  # length of a kernel that holds the GPU while others are launched: about 20 ms
SHORT_CYCLES = 8_000  # about 4 us
QUEUED = 400  # kernels behind that
NO_GPU = 3  # exit code


def timed_calls(gpu: Gpu, nvtx: Nvtx) -> Iterator[NamedCall]:
    """Yield every call that this machine has."""
    yield "nvtxRangePush, nvtxRangePop", lambda: (nvtx.push(b"calibration"), nvtx.pop())
    sources: tuple[Callable[[Gpu], Iterator[NamedCall]], ...] = (driver_calls, newer_driver_calls, runtime_calls)
    for source in sources:
        try:
            yield from source(gpu)
        except (CudaError, OSError):  # an older driver, or no libcudart: other calls of the kind stand for these
            continue


def call_times(gpu: Gpu, calls: list[NamedCall]) -> list[dict[str, object]]:
    """Return the name of each call, and its ns in each batch. The first of ROUNDS warms up."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for (_, call), own in zip(calls, times, strict=True):
            gpu.wait()
            began = perf_counter_ns()
            for _ in range(CALLS):
                call()
            own.append((perf_counter_ns() - began) / CALLS)
    gpu.wait()
    return [{"name": name, "batches": own[1:]} for (name, _), own in zip(calls, times, strict=True)]


def kernel_spacing(gpu: Gpu) -> int:
    """Return the ns from one kernel to the next on a GPU that is behind, for kernels of about 4 us."""
    block, short, elapsed = gpu.launch(gpu.spin, SPIN_CYCLES), gpu.launch(gpu.spin, SHORT_CYCLES), c_float()
    spacing = []
    for _ in range(3):
        block()
        gpu.cu("cuEventRecord", gpu.event, gpu.stream)
        for _ in range(QUEUED):
            short()
        gpu.cu("cuEventRecord", gpu.done, gpu.stream)
        gpu.wait()
        gpu.cu("cuEventElapsedTime", byref(elapsed), gpu.event, gpu.done)
        spacing.append(elapsed.value * 1e6 / QUEUED)
    return round(median(spacing))


def main() -> None:
    """Write the times to the file that the command line names."""
    try:
        gpu = Gpu()
    except (OSError, CudaError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(NO_GPU)
    calls = list(timed_calls(gpu, Nvtx()))
    gpu.wait()
    document = {
        "gpu": gpu.name,
        "cuda": gpu.version,
        "kernel_spacing": kernel_spacing(gpu),
        "calls": call_times(gpu, calls),
    }
    Path(sys.argv[1]).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main()
