"""Time the CUDA and NVTX calls of this machine: `python -m traceview.record.microbenchmark FILE`, also under nsys.

Calls are timed in tight loops. The stream is empty at the start of a batch, and a batch never fills its queue, so a
call waits for nothing but itself. Times are ns for a call, with the loop around it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
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

ROUNDS, CALLS = 21, 100  # batches of each call, calls in a batch
SPIN_CYCLES = 40_000_000  # length of a kernel that holds the GPU while others are launched: about 20 ms
SHORT_CYCLES = 8_000  # about 4 us
QUEUED = 400  # kernels behind that
NO_GPU = 3  # exit code
# nvtxDetail/nvtxTypes.h: the numbers of modules, callbacks and tables.
MODULES, CORE, CALLBACKS = range(1, 8), 1, 1
SLOTS = 17
PUSH, POP = 9, 11  # nvtxRangePushA, nvtxRangePop


class _Callbacks(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("table", c_void_p))


class Nvtx:
    """Push and pop of NVTX ranges without the package nvtx; they do nothing where no profiler listens.

    nsys names its injection library in the environment, and ctypes loads it.
    """

    def __init__(self) -> None:
        """Load the injection library and let it fill a table of callbacks, as nvtxInit.h does. Raises OSError."""
        self.push: Callable[[bytes], object] = lambda _name: None
        self.pop: Callable[[], object] = lambda: None
        path = os.environ.get("NVTX_INJECTION64_PATH")
        if not path:
            return
        slots, unused = (c_void_p * SLOTS)(), (c_void_p * SLOTS)()
        tables = {module: _pointers(slots if module == CORE else unused) for module in MODULES}

        def table_of_module(module: int, table: list[int], size: list[int]) -> int:
            if module not in tables:
                return 0
            table[0], size[0] = ctypes.addressof(tables[module]), SLOTS - 1
            return 1

        function = ctypes.CFUNCTYPE(c_int, c_uint, POINTER(c_void_p), POINTER(c_uint))(table_of_module)
        callbacks = _Callbacks(ctypes.sizeof(_Callbacks), ctypes.cast(function, c_void_p).value)
        export = ctypes.CFUNCTYPE(c_void_p, c_uint)(
            lambda number: ctypes.addressof(callbacks) if number == CALLBACKS else None
        )
        library = ctypes.CDLL(path)
        self.kept = (slots, unused, tables, function, callbacks, export, library)
        filled = library.InitializeInjectionNvtx2(export)
        push, pop = slots[PUSH], slots[POP]
        if filled and push and pop:
            self.push, self.pop = ctypes.CFUNCTYPE(c_int, c_char_p)(push), ctypes.CFUNCTYPE(c_int)(pop)


def _pointers(slots: ctypes.Array[c_void_p]) -> ctypes.Array[c_void_p]:
    """Return a table of pointers to slots; the first entry is unused."""
    width = ctypes.sizeof(c_void_p)
    addresses = [ctypes.addressof(slots) + index * width for index in range(1, SLOTS - 1)]
    return (c_void_p * SLOTS)(None, *addresses)


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
