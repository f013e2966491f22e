"""Programs on two GPUs whose exposed collectives have a known cause: torchrun --nproc-per-node=2 two_gpus.py CASE."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

case = sys.argv[1]
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
torch.manual_seed(0)
WIDTH, LAYERS, STEPS, WARM = 4096, 6, 10, 4
bf16 = {"device": "cuda", "dtype": torch.bfloat16}
x = torch.randn(4096, WIDTH, **bf16)
weights = [torch.randn(WIDTH, WIDTH, **bf16) for _ in range(LAYERS)]
gradient = torch.randn(32 << 20, **bf16)  # 64 MiB
shards = [torch.randn(WIDTH * WIDTH // 2, **bf16) for _ in range(LAYERS)]
whole = [torch.empty(WIDTH * WIDTH, **bf16) for _ in range(LAYERS)]


def _layers(value, count=LAYERS):
    for weight in weights[:count]:
        value = torch.relu(value @ weight)
    return value


def _late_rank(i):
    _layers(x)
    if rank == 1:
        torch.cuda._sleep(8_000_000)  # about 4 ms of the GPU
    dist.all_reduce(gradient)
    _layers(x)


def _late_launch(i):
    _layers(x)
    torch.cuda.synchronize()
    time.sleep(0.002)
    dist.all_reduce(gradient)
    _layers(x)


def _gather_at_once(i):
    value = x
    for shard, weight in zip(shards, whole, strict=True):
        dist.all_gather_into_tensor(weight, shard)
        value = torch.relu(value @ weight.view(WIDTH, WIDTH))


def _gather_ahead(i):
    value, work = x, dist.all_gather_into_tensor(whole[0], shards[0], async_op=True)
    for number in range(LAYERS):
        work.wait()
        if number + 1 < LAYERS:
            work = dist.all_gather_into_tensor(whole[number + 1], shards[number + 1], async_op=True)
        for _ in range(3):
            value = torch.relu(value @ whole[number].view(WIDTH, WIDTH))


def _late_rank_async(i):
    _layers(x)
    if rank == 1:
        torch.cuda._sleep(8_000_000)
    dist.all_reduce(gradient, async_op=True).wait()  # in NCCL's stream; without async_op it is in the current one
    _layers(x)


def _late_launch_async(i):
    _layers(x)
    torch.cuda.synchronize()
    time.sleep(0.002)
    dist.all_reduce(gradient, async_op=True).wait()
    _layers(x)


def _gather_at_once_async(i):
    value = x
    for shard, weight in zip(shards, whole, strict=True):
        dist.all_gather_into_tensor(weight, shard, async_op=True).wait()
        value = torch.relu(value @ weight.view(WIDTH, WIDTH))


def _tensor_parallel_async(i):
    value = x
    for weight in weights:
        value = torch.relu(value @ weight)
        dist.all_reduce(value, async_op=True).wait()


def _tensor_parallel(i):
    value = x
    for weight in weights:
        value = torch.relu(value @ weight)
        dist.all_reduce(value)


def _price(i):
    beside = i % 2 == 0
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_push("beside" if beside else "alone")
    work = dist.all_reduce(gradient, async_op=True) if beside else None
    _layers(_layers(_layers(x)))
    work = work or dist.all_reduce(gradient, async_op=True)
    work.wait()
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(2048, 8192, bias=False), nn.Linear(8192, 2048, bias=False)

    def forward(self, value):
        return value + self.down(torch.relu(self.up(value)))


def _training(prepare):
    with torch.device("cuda"):
        model = nn.Sequential(*(_Block() for _ in range(6))).to(torch.bfloat16)
    model = prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.randn(4096, 2048, **bf16)

    def step(i):
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _ddp(model):
    return nn.parallel.DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=50)


def _fsdp(model):
    from torch.distributed.fsdp import fully_shard

    for block in model:
        fully_shard(block)
    fully_shard(model)
    if case == "fsdp_prefetch":
        for this, following in zip(model, list(model)[1:], strict=False):
            this.set_modules_to_forward_prefetch([following])
    return model


def _fsdp_slow(model):
    """The host waits for the GPU before each block, so that each all-gather is launched when its result is needed."""
    model = _fsdp(model)
    for block in model:
        block.register_forward_pre_hook(lambda *_: torch.cuda.synchronize(), prepend=True)
    return model


makers = {"ddp": _ddp, "fsdp": _fsdp, "fsdp_prefetch": _fsdp, "fsdp_synchronized": _fsdp_slow}
step = _training(makers[case]) if case in makers else globals()[f"_{case}"]
for i in range(WARM):
    step(i)
torch.cuda.synchronize()
dist.barrier()
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()
for i in range(STEPS * (2 if case == "price" else 1)):
    torch.cuda.nvtx.range_push(f"iteration {i}")
    step(i)
    torch.cuda.nvtx.range_pop()
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
dist.barrier()
dist.destroy_process_group()
