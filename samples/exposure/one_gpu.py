"""Programs on one GPU whose exposed copies have a known cause: python one_gpu.py CASE."""

import sys
import time

import torch

case = sys.argv[1]
torch.manual_seed(0)
device = torch.device("cuda")
MB = 1 << 20
STEPS, WARM = 10, 4
host = torch.empty(64 * MB, dtype=torch.uint8, pin_memory=True).random_(0, 255)
batch = [torch.empty(64 * MB, dtype=torch.uint8, device=device) for _ in range(2)]
weights = [torch.randn(4096, 4096, device=device, dtype=torch.bfloat16) for _ in range(8)]
x = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
compute, copier = torch.cuda.current_stream(), torch.cuda.Stream()


def _layers(value, count=8):
    for weight in weights[:count]:
        value = torch.relu(value @ weight)
    return value


def _same_stream(i):
    batch[0].copy_(host, non_blocking=True)
    _layers(x)
    _layers(x)


def _slow_host(i):
    with torch.cuda.stream(copier):
        batch[i % 2].copy_(host, non_blocking=True)
    time.sleep(0.004)  # the host does something else before it launches the step
    compute.wait_stream(copier)
    _layers(x)
    torch.cuda.synchronize()


def _late_copy(i):
    time.sleep(0.005)  # loading takes longer than the step of before
    with torch.cuda.stream(copier):
        batch[i % 2].copy_(host, non_blocking=True)
    compute.wait_stream(copier)
    _layers(x)


def _needed_at_once(i):
    copier.wait_stream(compute)  # one buffer: the copy waits until the step before has read it
    with torch.cuda.stream(copier):
        batch[0].copy_(host, non_blocking=True)
    compute.wait_stream(copier)
    for _ in range(3):
        _layers(x)


flags = torch.empty(MB, dtype=torch.uint8, device=device)


def _connections(i):
    # CUDA_DEVICE_MAX_CONNECTIONS=1: the memset waits for the copy, and the independent kernels queue up behind it.
    with torch.cuda.stream(copier):
        batch[i % 2].copy_(host, non_blocking=True)
        flags.zero_()
    _layers(x, 4)


def _connections_memset(i):
    # As _connections, with a memset in place of the kernel that zero_() launches: the copy's stream computes nothing.
    with torch.cuda.stream(copier):
        batch[i % 2].copy_(host, non_blocking=True)
    cupy.cuda.runtime.memsetAsync(flags.data_ptr(), 0, MB, copier.cuda_stream)
    _layers(x, 4)


small = torch.empty(4 * MB, dtype=torch.uint8, pin_memory=True)
table = torch.empty(4 * MB, dtype=torch.uint8, device=device)


def _engine(i):
    copier.wait_stream(compute)
    with torch.cuda.stream(copier):
        batch[i % 2].copy_(host, non_blocking=True)  # the next batch; nothing waits for it in this step
    table.copy_(small, non_blocking=True)  # on the compute stream: the one engine for this direction is busy
    _layers(x)


def _prefetch(i):
    compute.wait_stream(copier)
    copier.wait_stream(compute)
    with torch.cuda.stream(copier):
        batch[i % 2].copy_(host, non_blocking=True)
    for _ in range(4):
        _layers(x)


def _two_copies(i):
    copier.wait_stream(compute)
    second.wait_stream(compute)
    with torch.cuda.stream(copier):
        batch[0].copy_(host, non_blocking=True)  # not needed in this step
    with torch.cuda.stream(second):
        batch[1].copy_(host, non_blocking=True)
    compute.wait_stream(second)
    _layers(x)


second = torch.cuda.Stream()
wide = [torch.randn(32 * MB, device=device) for _ in range(3)]
back = torch.empty(64 * MB, dtype=torch.uint8, pin_memory=True)


def _price(i):
    beside = i % 2 == 0
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_push("beside" if beside else "alone")
    if beside:
        for stream in (copier, second):
            stream.wait_stream(compute)
        with torch.cuda.stream(copier):
            batch[0].copy_(host, non_blocking=True)
            batch[1].copy_(host, non_blocking=True)
        with torch.cuda.stream(second):
            back.copy_(table.repeat(16), non_blocking=True)
    for _ in range(16):
        torch.add(wide[0], wide[1], out=wide[2])
    if not beside:
        copier.wait_stream(compute)
        with torch.cuda.stream(copier):
            batch[0].copy_(host, non_blocking=True)
            batch[1].copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()


def _full_sms(i):
    # A kernel with a collective's name takes every thread of every SM for 1.5 ms; independent work cannot start.
    with torch.cuda.stream(copier):
        _spin((264,), (1024,), (1_500_000,), stream=fake)
    time.sleep(0.0002)
    _layers(x, 4)
    torch.cuda.synchronize()


if case == "connections_memset":
    import cupy

if case == "full_sms":
    import cupy

    source = """extern "C" __global__ __launch_bounds__(1024)
        void ncclDevKernel_AllReduce_Sum_f32_RING_LL(long long ns) {
        unsigned long long begin, now; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
        do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begin < ns); }"""
    kernel = cupy.RawKernel(source, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    fake = cupy.cuda.ExternalStream(copier.cuda_stream)

    def _spin(grid, block, args, stream):
        with stream:
            kernel(grid, block, (cupy.int64(args[0]),))


step = globals()[f"_{case}"]
for i in range(WARM):
    step(i)
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()
for i in range(STEPS * (2 if case == "price" else 1)):
    torch.cuda.nvtx.range_push(f"iteration {i}")
    step(i)
    torch.cuda.nvtx.range_pop()
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
