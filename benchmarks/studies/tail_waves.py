"""Time kernels whose blocks divide evenly among the SMs, and the same with some blocks more: the truth of `tail_wave`.

    python benchmarks/studies/tail_waves.py OUT.json        (under nsys, each case is an NVTX range too)

Products of Triton have tiles of 128 x 128 in bf16 and two blocks on an SM at once; a chain does arithmetic on its block
alone, and a total sums rows, with 8 or 16 blocks on an SM. OUT has the number of blocks and five times in µs by case.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

CALLS, REPEATS, TILE, COLUMNS, INNER = 20, 5, 128, 12, 2048
Case = tuple[str, int, Callable[[], object]]


@triton.jit
def product(
    a: Any, b: Any, c: Any, depth: Any, width: Any, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr
) -> None:
    """Multiply one tile of a with one of b."""
    rows, columns = tl.program_id(0) * tile_m + tl.arange(0, tile_m), tl.program_id(1) * tile_n + tl.arange(0, tile_n)
    inner, total = tl.arange(0, tile_k), tl.zeros((tile_m, tile_n), dtype=tl.float32)
    for k in range(0, depth, tile_k):
        x = tl.load(a + rows[:, None] * depth + (k + inner)[None, :])
        y = tl.load(b + (k + inner)[:, None] * width + columns[None, :])
        total += tl.dot(x, y)
    tl.store(c + rows[:, None] * width + columns[None, :], total.to(tl.bfloat16))


@triton.jit
def chain(x: Any, steps: Any, size: tl.constexpr) -> None:
    """Do arithmetic on size values."""
    places = tl.program_id(0) * size + tl.arange(0, size)
    value = tl.load(x + places)
    for _ in range(steps):
        value = value * 1.0001 + 0.0001
    tl.store(x + places, value)


@triton.jit
def total(x: Any, out: Any, columns: Any, size: tl.constexpr) -> None:
    """Sum one row."""
    row, value = tl.program_id(0), tl.zeros((size,), dtype=tl.float32)
    for at in range(0, columns, size):
        value += tl.load(x + row * columns + at + tl.arange(0, size))
    tl.store(out + row, tl.sum(value))


def products() -> Iterator[Case]:
    """Yield products with a multiple of 132 tiles, and with 12 and 48 more."""
    for waves in (1, 2, 3, 4, 6, 8):
        for more in (0, 1, 4):
            rows = 11 * waves + more
            a = torch.randn(rows * TILE, INNER, device="cuda", dtype=torch.bfloat16)
            b = torch.randn(INNER, COLUMNS * TILE, device="cuda", dtype=torch.bfloat16)
            c = torch.empty(rows * TILE, COLUMNS * TILE, device="cuda", dtype=torch.bfloat16)
            arguments = (a, b, c, INNER, COLUMNS * TILE, TILE, TILE, 64)
            call = lambda rows=rows, arguments=arguments: product[(rows, COLUMNS)](*arguments, num_warps=8)  # noqa: E731
            yield f"product {waves} + {more * COLUMNS}", rows * COLUMNS, call


def loops(sms: int) -> Iterator[Case]:
    """Yield chains and totals that fill the SMs 1 to 8 times, and with some blocks more."""
    for name, per_sm, numbers in (("chain", 8, (1, 2, 4, 8)), ("chain", 16, (1, 2, 4, 8)), ("total", 16, (1, 2, 4))):
        warps = 64 // per_sm
        for waves in numbers:
            for more in (0, sms // 8, sms, sms * per_sm // 2):
                blocks = sms * per_sm * waves + more
                if name == "chain":
                    values = torch.zeros(blocks * warps * 128, device="cuda")
                    call = lambda v=values, n=blocks, w=warps: chain[(n,)](v, 2000, w * 128, num_warps=w)  # noqa: E731
                else:
                    table, out = torch.zeros(blocks, 8192, device="cuda"), torch.zeros(blocks, device="cuda")
                    call = lambda t=table, o=out, n=blocks: total[(n,)](t, o, 8192, 512, num_warps=4)  # noqa: E731
                yield f"{name} of {per_sm} an SM, {waves} + {more}", blocks, call


def timed(call: Callable[[], object]) -> list[float]:
    """Return µs a call, REPEATS times."""
    times = []
    for _ in range(REPEATS + 1):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for _ in range(CALLS):
            call()
        last.record()
        torch.cuda.synchronize()
        times.append(round(first.elapsed_time(last) * 1000 / CALLS, 3))
    return times[1:]


def main() -> None:
    """Time all cases and write them."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    results = []
    for name, blocks, call in (*products(), *loops(sms)):
        torch.cuda.nvtx.range_push(name)
        results.append({"case": name, "blocks": blocks, "us": timed(call)})
        torch.cuda.nvtx.range_pop()
    Path(sys.argv[1]).write_text(json.dumps({"sms": sms, "cases": results}))


if __name__ == "__main__":
    main()
