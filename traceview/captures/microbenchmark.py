"""Time the CUDA and NVTX calls of this machine: `python -m traceview.captures.microbenchmark FILE`, also under nsys.

Calls are timed in tight loops. The stream is empty at the start of a batch, and a batch never fills its queue, so a
call waits for nothing but itself. Times are ns for a call, with the loop around it. ctypes makes the calls: this needs
neither PyTorch nor a compiler.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from statistics import median
from time import perf_counter_ns

PTX = Path(__file__).with_suffix(".ptx").read_bytes()  # kernels: one is empty, one runs for some cycles
SMALL = 4096  # bytes of a small copy
BLOCK = 1 << 20  # bytes of an allocation
GRAPH_KERNELS = 20
CUDART = ("nvidia/cu13/lib/libcudart.so.13", "nvidia/cuda_runtime/lib/libcudart.so.1*", "nvidia/*/lib/libcudart.so.1*")
ROUNDS, CALLS = 21, 100  # batches of each call, calls in a batch
SPIN_CYCLES = 40_000_000  # length of a kernel that holds the GPU while others are launched: about 20 ms
SHORT_CYCLES = 8_000  # about 4 us
QUEUED = 400  # kernels behind that
NO_GPU = 3  # exit code
# nvtxDetail/nvtxTypes.h: the numbers of modules, callbacks and tables.
MODULES, CORE, CALLBACKS = range(1, 8), 1, 1
SLOTS = 17
PUSH, POP = 9, 11  # nvtxRangePushA, nvtxRangePop
Call = Callable[[], object]
NamedCall = tuple[str, Call]


class CudaError(RuntimeError):
    """A CUDA call failed or is missing."""


class Dim3(ctypes.Structure):
    """CUDA's dim3, passed by value."""

    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint))


class LaunchConfig(ctypes.Structure):
    """CUDA's CUlaunchConfig."""

    _fields_ = (
        *((name, c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    )


class CudaLibrary:
    """A library whose functions return 0 or an error."""

    def __init__(self, path: str) -> None:
        """Load the library. Raises OSError."""
        self.library = ctypes.CDLL(path)

    def __call__(self, name: str, *arguments: object) -> None:
        """Call a function. Raises CudaError if it fails or is missing."""
        code = self.bound(name, *arguments)()
        if code:
            raise CudaError(f"{name} returned {code}")

    def bound(self, name: str, *arguments: object) -> Call:
        """Return the call of a function with these arguments. Raises CudaError if the function is missing."""
        function = getattr(self.library, name, None)
        if function is None:
            raise CudaError(f"{name} is missing")
        return lambda: function(*arguments)


class KernelArguments:
    """The argument of a kernel, one 64-bit number, as CUDA takes it."""

    def __init__(self, number: int) -> None:
        """Store the number."""
        self.number = c_uint64(number)
        self.pointers = (c_void_p * 1)(ctypes.cast(byref(self.number), c_void_p).value)


class Gpu:
    """A context, a stream, events, kernels and memory of the first GPU."""

    def __init__(self) -> None:
        """Create everything. Raises OSError without a driver and CudaError without a GPU."""
        self.cu = cu = CudaLibrary("libcuda.so.1")
        cu("cuInit", 0)
        device, version, name = c_int(), c_int(), ctypes.create_string_buffer(256)
        self.context, self.stream, self.module = c_void_p(), c_void_p(), c_void_p()
        cu("cuDeviceGet", byref(device), 0)
        cu("cuDevicePrimaryCtxRetain", byref(self.context), device)
        cu("cuCtxSetCurrent", self.context)
        cu("cuStreamCreate", byref(self.stream), 1)
        cu("cuModuleLoadData", byref(self.module), c_char_p(PTX))
        self.empty, self.spin, self.event, self.done = c_void_p(), c_void_p(), c_void_p(), c_void_p()
        cu("cuModuleGetFunction", byref(self.empty), self.module, b"empty")
        cu("cuModuleGetFunction", byref(self.spin), self.module, b"spin")
        for event in (self.event, self.done):
            cu("cuEventCreate", byref(event), 0)
        self.memory, self.pinned = c_uint64(), c_void_p()
        cu("cuMemAlloc_v2", byref(self.memory), c_size_t(2 * BLOCK))
        cu("cuMemHostAlloc", byref(self.pinned), c_size_t(SMALL), 0)
        self.pageable = ctypes.create_string_buffer(SMALL)
        cu("cuDeviceGetName", name, len(name), device)
        cu("cuDriverGetVersion", byref(version))
        self.name, self.version = name.value.decode("utf-8", "replace"), version.value

    def launch(self, function: c_void_p, cycles: int = 0) -> Call:
        """Return the launch of a kernel of one warp."""
        arguments = KernelArguments(cycles)
        size = (*map(c_uint, (1, 1, 1, 32, 1, 1, 0)), self.stream, arguments.pointers, None)
        call = self.cu.bound("cuLaunchKernel", function, *size)
        return _keeping(call, arguments)

    def wait(self) -> None:
        """Wait until the GPU has finished."""
        self.cu("cuCtxSynchronize")

    def graph(self) -> c_void_p:
        """Return an executable graph of empty kernels."""
        graph, executable, launch = c_void_p(), c_void_p(), self.launch(self.empty)
        self.cu("cuStreamBeginCapture_v2", self.stream, 2)
        for _ in range(GRAPH_KERNELS):
            launch()
        self.cu("cuStreamEndCapture", self.stream, byref(graph))
        self.cu("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
        return executable


def _keeping(call: Call, *kept: object) -> Call:
    """Return a call that keeps the objects that its arguments point to."""

    def keeping() -> object:
        return call()

    keeping.kept = kept  # type: ignore[attr-defined]
    return keeping


def driver_calls(gpu: Gpu) -> Iterator[NamedCall]:
    """Yield calls of the driver. Raises CudaError."""
    cu, stream, size = gpu.cu, gpu.stream, c_size_t(SMALL)
    yield "cuLaunchKernel", gpu.launch(gpu.empty)
    yield "copy h2d pinned", cu.bound("cuMemcpyHtoDAsync_v2", gpu.memory, gpu.pinned, size, stream)
    yield "copy h2d pageable", cu.bound("cuMemcpyHtoDAsync_v2", gpu.memory, gpu.pageable, size, stream)
    yield "copy d2h pageable", cu.bound("cuMemcpyDtoHAsync_v2", gpu.pageable, gpu.memory, size, stream)
    yield "copy memset", cu.bound("cuMemsetD8Async", gpu.memory, ctypes.c_ubyte(0), size, stream)
    yield "event record", cu.bound("cuEventRecord", gpu.event, stream)
    yield "event query", cu.bound("cuEventQuery", gpu.done)
    yield "event wait", cu.bound("cuStreamWaitEvent", stream, gpu.done, c_uint(0))
    yield "sync stream", cu.bound("cuStreamSynchronize", stream)
    yield "sync event", cu.bound("cuEventSynchronize", gpu.done)
    yield "cuGraphLaunch", cu.bound("cuGraphLaunch", gpu.graph(), stream)
    block = c_uint64()
    allocate = cu.bound("cuMemAlloc_v2", byref(block), c_size_t(BLOCK))
    free = cu.bound("cuMemFree_v2", block)
    yield "cuMemAlloc, cuMemFree", lambda: (allocate(), free())


def newer_driver_calls(gpu: Gpu) -> Iterator[NamedCall]:
    """Yield calls that drivers have since CUDA 12. Raises CudaError."""
    config, arguments = LaunchConfig(1, 1, 1, 32, 1, 1, 0, gpu.stream, None, 0), KernelArguments(0)
    launch = gpu.cu.bound("cuLaunchKernelEx", byref(config), gpu.empty, arguments.pointers, None)
    yield "cuLaunchKernelEx", _keeping(launch, config, arguments)
    library, kernel, value = c_void_p(), c_void_p(), c_int()
    gpu.cu("cuLibraryLoadData", byref(library), c_char_p(PTX), None, None, c_uint(0), None, None, c_uint(0))
    gpu.cu("cuLibraryGetKernel", byref(kernel), library, b"empty")
    yield "cuKernelGetAttribute", gpu.cu.bound("cuKernelGetAttribute", byref(value), 0, kernel, 0)


def runtime_calls(gpu: Gpu) -> Iterator[NamedCall]:
    """Yield calls of the runtime, as PyTorch makes them. Raises OSError or CudaError."""
    rt = CudaLibrary(find_cudart())
    rt("cudaSetDevice", 0)
    stream, status = gpu.stream, c_int()
    library, kernel, arguments = c_void_p(), c_void_p(), KernelArguments(0)
    rt("cudaLibraryLoadData", byref(library), c_char_p(PTX), None, None, c_uint(0), None, None, c_uint(0))
    rt("cudaLibraryGetKernel", byref(kernel), library, b"empty")
    size = (Dim3(1, 1, 1), Dim3(32, 1, 1), arguments.pointers, c_size_t(0), stream)
    rt("cudaLaunchKernel", kernel, *size)
    yield "cudaLaunchKernel", _keeping(rt.bound("cudaLaunchKernel", kernel, *size), arguments)
    memory, count = c_void_p(gpu.memory.value), c_size_t(SMALL)
    yield "cudaMemcpyAsync", rt.bound("cudaMemcpyAsync", memory, gpu.pinned, count, 1, stream)
    yield "cudaEventRecord", rt.bound("cudaEventRecord", gpu.done, stream)
    yield "cudaStreamSynchronize", rt.bound("cudaStreamSynchronize", stream)
    yield "cudaStreamIsCapturing", rt.bound("cudaStreamIsCapturing", stream, byref(status))


def find_cudart() -> str:
    """Return the path of libcudart, from $CUDART, Python's packages or the system. Raises CudaError."""
    paths = [Path(os.environ["CUDART"])] if "CUDART" in os.environ else []
    for folder in sys.path:
        paths += [path for pattern in CUDART for path in sorted(Path(folder or ".").glob(pattern))]
    paths += sorted(Path("/usr/local").glob("cuda*/lib64/libcudart.so.1*"))
    path = next((str(path) for path in paths if path.exists()), ctypes.util.find_library("cudart"))
    if path is None:
        raise CudaError("libcudart is missing")
    return path


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
