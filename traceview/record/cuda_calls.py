"""CUDA and NVTX calls through ctypes, for the microbenchmark: without PyTorch, and without a compiler."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from collections.abc import Callable, Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry empty(.param .u64 ignored) { ret; }
.visible .entry spin(.param .u64 cycles)
{
    .reg .u64 %start, %now, %limit;
    .reg .u32 %rounds;
    .reg .pred %go;
    ld.param.u64 %limit, [cycles];
    mov.u32 %rounds, 0;
    mov.u64 %start, %clock64;
AGAIN:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %start;
    add.u32 %rounds, %rounds, 1;
    setp.lt.u64 %go, %now, %limit;
    setp.lt.and.u32 %go, %rounds, 50000000, %go;
    @%go bra AGAIN;
    ret;
}
"""
SMALL = 4096  # bytes of a small copy
BLOCK = 1 << 20  # bytes of an allocation
GRAPH_KERNELS = 20
CUDART = ("nvidia/cu13/lib/libcudart.so.13", "nvidia/cuda_runtime/lib/libcudart.so.1*", "nvidia/*/lib/libcudart.so.1*")
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
