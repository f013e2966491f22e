"""PyTorch, JAX, CuPy and Triton programs, each with one planted cause of lost GPU time and no NVTX range.

nsys profile -t cuda,nvtx -s none --cpuctxsw=none -o sleep python causes.py sleep
torchrun --nproc-per-node 2 --no-python nsys profile ... -o straggler%q{RANK} python causes.py straggler
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

STEPS = 40


def small_transformer():
    """Return a model, its optimizer and a batch on the GPU."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4).cuda()
    return model, torch.optim.AdamW(model.parameters(), 1e-4), torch.randn(32, 256, 512, device="cuda")


def train(
    before: Callable[[int], object] = lambda _index: None, after: Callable[[object], object] = lambda _loss: None
) -> None:
    """Train STEPS steps; `before` gets the step's number, `after` the loss."""
    model, optimizer, batch = small_transformer()
    for index in range(STEPS):
        before(index)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after(loss)


def sleep() -> None:
    """Each step waits 20 ms for something on the host."""
    train(before=lambda _index: time.sleep(0.02))


def items() -> None:
    """The loss and 20 values of it are read in each step."""
    train(after=lambda loss: [loss.item() for _ in range(20)])


def empty_cache() -> None:
    """The allocator's cache is emptied in each step."""
    import torch

    train(after=lambda _loss: torch.cuda.empty_cache())


def inference_output() -> None:
    """A model infers; each input and output crosses in ordinary memory."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(6))).cuda().eval()
    images = torch.randn(32, 64, 128, 128)
    with torch.inference_mode():
        for _ in range(STEPS):
            model(images.cuda()).cpu()


def decode() -> None:
    """A small GPT-2 generates token by token: launches take longer than kernels."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda().eval().half()
    with torch.inference_mode():
        prompt = torch.randint(50000, (1, 64), device="cuda")
        model.generate(prompt, max_new_tokens=64, do_sample=False, pad_token_id=0, eos_token_id=None)


def jax_inputs() -> None:
    """JAX gets each batch from NumPy."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    weights = jnp.ones((4096, 4096), jnp.bfloat16)
    step = jax.jit(lambda x, w: jnp.tanh(x.astype(jnp.bfloat16) @ w) @ w)
    batch = np.ones((8192, 4096), np.float32)
    for _ in range(STEPS):
        result = step(batch, weights)
    result.block_until_ready()


def cupy_sync() -> None:
    """CuPy: each iteration of a solver reads the residual."""
    import cupy

    grid = cupy.random.rand(2048, 2048)
    for _ in range(STEPS * 10):
        new = grid.copy()
        new[1:-1, 1:-1] = 0.25 * (grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:])
        residual = float(cupy.abs(new - grid).max())
        grid = new
    print(residual)


def triton_launch() -> None:
    """Triton: many tiny kernels from Python."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add_kernel(x, y, n, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

    x, y = torch.zeros(4096, device="cuda"), torch.zeros(4096, device="cuda")
    for _ in range(STEPS * 50):
        add_kernel[(4,)](x, y, 4096, 1024)
    torch.cuda.synchronize()


def straggler() -> None:
    """Two ranks of DDP: rank 1 sleeps 15 ms in each step."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    model, _, batch = small_transformer()
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(STEPS):
        if rank == 1:
            time.sleep(0.015)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    dist.destroy_process_group()


CAUSES = (sleep, items, empty_cache, inference_output, decode, jax_inputs, cupy_sync, triton_launch, straggler)

if __name__ == "__main__":
    {cause.__name__.replace("_", "-"): cause for cause in CAUSES}[sys.argv[1]]()
