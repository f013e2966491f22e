#!/usr/bin/env python3
"""Measure matrix products and memory-bound kernels on a GPU with idle phases, with and without concurrent copies.

    python benchmarks/studies/power_and_copies.py results.json

A step has some matrix products (8192 x 8192, bf16) and some multiplications of 512 MB. Then the GPU is idle, so that it
is busy 30 to 100% of the time. Each row holds the kernels' times in the first 0.3 s and after 0.9 s, and the power and
clock from nvidia-smi after 0.6 s. If `copies` is true, a pinned copy of 256 MB runs during each step. Needs a GPU,
PyTorch and nvidia-smi; takes 70 s. It is the source of POWER_LIMITS and beside_slow in traceview/replay/constants.py.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SIZE = 8192
MIXES = ((4, 0), (4, 6), (2, 12), (1, 18), (0, 24))
DUTIES = (0.3, 0.5, 0.7, 0.85, 1.0)
BESIDE = ((4, 0), (4, 6), (0, 24))
SECONDS, EARLY, LATE, SETTLED = 1.6, 0.3, 0.9, 0.6
QUERY = ("nvidia-smi", "--query-gpu=power.draw.instant,clocks.sm", "--format=csv,noheader,nounits", "-lms", "50")
Timed = tuple[torch.cuda.Event, torch.cuda.Event, int]


class Work:
    """The kernels of a step, and the concurrent copy."""

    def __init__(self) -> None:
        """Allocate all tensors."""
        self.left, self.right = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.product = torch.empty_like(self.left)
        self.values = torch.randn(256 << 20, device="cuda", dtype=torch.bfloat16)
        self.scaled = torch.empty_like(self.values)
        self.host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
        self.there = torch.empty_like(self.host, device="cuda")
        self.side = torch.cuda.Stream()

    def multiply(self) -> None:
        """Run a matrix product."""
        torch.mm(self.left, self.right, out=self.product)

    def scale(self) -> None:
        """Run a memory-bound kernel."""
        torch.mul(self.values, 1.5, out=self.scaled)

    def copy(self) -> None:
        """Start a copy on a separate stream."""
        with torch.cuda.stream(self.side):
            self.there.copy_(self.host, non_blocking=True)


def timed(kernel: Callable[[], None], count: int) -> Timed:
    """Launch a kernel several times between two events."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(count):
        kernel()
    last.record()
    return first, last, count


def row(work: Work, mix: tuple[int, int], duty: float, copies: bool, read: list[tuple[float, str]]) -> dict[str, Any]:
    """Run steps for SECONDS; return the figures."""
    begun, steps = time.time(), []
    while time.time() - begun < SECONDS:
        step_begun = time.perf_counter()
        if copies:
            work.copy()
        pairs = zip((work.multiply, work.scale), mix, strict=True)
        steps.append((time.time() - begun, [timed(kernel, count) if count else None for kernel, count in pairs]))
        if duty < 1 or len(steps) % 4 == 0:  # a GPU without idle phases is a few steps behind the host
            torch.cuda.synchronize()
        until = step_begun + (time.perf_counter() - step_begun) / duty
        while duty < 1 and time.perf_counter() < until:
            pass
    torch.cuda.synchronize()
    result: dict[str, Any] = {"products": mix[0], "multiplications": mix[1], "duty": duty, "copies": copies}
    for place, name in enumerate(("gemm", "elem")):
        for label, chosen in (
            ("first", [s for at, s in steps if at < EARLY]),
            ("last", [s for at, s in steps if at > LATE]),
        ):
            times = [1000 * events[0].elapsed_time(events[1]) / events[2] for step in chosen if (events := step[place])]
            if times:
                result[f"{name}_{label}_us"] = statistics.mean(times)
    seen = [text.split(",") for at, text in read if begun + SETTLED < at < begun + SECONDS]
    return result | {
        "steps": len(steps),
        "power_w": statistics.mean(float(watts) for watts, _ in seen),
        "sm_mhz": statistics.mean(float(clock) for _, clock in seen),
    }


def main() -> None:
    """Measure all rows and write them."""
    read: list[tuple[float, str]] = []
    with subprocess.Popen(QUERY, stdout=subprocess.PIPE, text=True) as watcher:
        lines = watcher.stdout or []
        threading.Thread(target=lambda: read.extend((time.time(), line) for line in lines), daemon=True).start()
        work, rows = Work(), []
        timed(work.multiply, 3), timed(work.scale, 3)
        torch.cuda.synchronize()
        runs = [(mix, duty, False) for mix in MIXES for duty in DUTIES]
        runs += [(mix, duty, True) for mix in BESIDE for duty in (1.0, 0.7)]
        for mix, duty, copies in runs:
            rows.append(row(work, mix, duty, copies, read))
            print(json.dumps(rows[-1]), flush=True)
            time.sleep(0.4)
        watcher.terminate()
    Path(sys.argv[1]).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
