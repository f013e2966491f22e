"""How long the GPU needs for an iteration that the host launched ahead of it: its work without the gaps between."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from instrument.streams import Event

LONGEST_MS = 500.0
CYCLES_PER_MS = 2_000_000  # at the clock of the fastest GPUs; at a slower one the GPU is held for longer


def gpu_ms(iterate: Callable[[], None], device: torch.device) -> float:
    """Return the GPU's time for one iteration that was launched while the GPU was kept busy.

    A GPU queues about a thousand launches. In an iteration with more launches the gaps after the first thousand count
    too, so the time is too long, never too short.

    Args:
        iterate: launches one iteration, and does not wait.
        device: a CUDA device.
    """
    launching = _launching_ms(iterate, device)
    start, end = (Event(device, timing=True) for _ in range(2))
    torch.cuda._sleep(int(min(2 * launching, LONGEST_MS) * CYCLES_PER_MS))  # type: ignore[no-untyped-call]
    start.record()
    iterate()
    end.record()
    torch.cuda.synchronize(device)
    return end.milliseconds_since(start)


def _launching_ms(iterate: Callable[[], None], device: torch.device) -> float:
    torch.cuda.synchronize(device)
    begun = time.perf_counter()
    iterate()
    spent = (time.perf_counter() - begun) * 1000
    torch.cuda.synchronize(device)
    return spent
