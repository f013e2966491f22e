"""Measure the steps of a program of blind_pairs.py: time, energy by NVML's counter, and the clock of the GPU."""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import blind_gpu_programs as _
import blind_host_programs as _  # noqa: F401, F811
import torch
from blind_job import PROGRAMS, Job, Loop

WARM_UP, STEPS, CAPTURED, LEAST = 8, 40, 30, 12  # steps: of warm-up, timed at most, captured at most, timed at least
LONGEST = 3.0  # seconds timed at most
SETTLE, ENERGY = 0.5, 1.0  # seconds: of warm-up after the first steps, for the clocks; of steps whose energy is read
clock = time.perf_counter


def wait() -> None:
    """Wait for the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Meter:
    """The energy counter and the clock of the first GPU."""

    def __init__(self) -> None:
        self.nvml, self.handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        self.call("nvmlInit_v2")
        self.call("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(self.handle))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of NVML."""
        code = getattr(self.nvml, name)(*arguments)
        if code:
            raise OSError(f"{name} returned {code}")

    def joules(self) -> float:
        """Return the energy since the driver was loaded."""
        value = ctypes.c_ulonglong()
        self.call("nvmlDeviceGetTotalEnergyConsumption", self.handle, ctypes.byref(value))
        return value.value / 1000

    def megahertz(self) -> int:
        """Return the clock of the multiprocessors."""
        value = ctypes.c_uint()
        self.call("nvmlDeviceGetClockInfo", self.handle, 1, ctypes.byref(value))
        return value.value

    def edge(self) -> tuple[float, float]:
        """Wait until the counter changes, at most 0.3 s, and return it and the time."""
        first, limit = self.joules(), clock() + 0.3
        while (now := self.joules()) == first and clock() < limit:
            pass
        return now, clock()


def phases(result: dict[str, Any], profiled: bool) -> Iterator[None]:
    """Warm up, time some steps, and measure the energy of others. A step runs between two `next`."""
    for _number in range(WARM_UP - 3):
        yield
    begun = clock()
    while clock() - begun < SETTLE:
        yield
    wait()
    start = clock()
    for _number in range(3):
        yield
    wait()
    steps = min(max(int(LONGEST * 3 / (clock() - start)), LEAST), CAPTURED if profiled else STEPS)
    gc.collect()
    if profiled:
        torch.cuda.cudart().cudaProfilerStart()
    wait()
    ends = [clock()]
    for _number in range(steps):
        yield
        ends.append(clock())
    wait()
    result["ms_per_step"] = round((clock() - ends[0]) * 1000 / steps, 4)
    result["steps"] = steps
    result["host_ms"] = [round((b - a) * 1000, 3) for a, b in itertools.pairwise(ends)]
    if profiled:
        torch.cuda.cudart().cudaProfilerStop()
        return
    try:
        meter = Meter()
        meter.megahertz()
        first = meter.edge()
    except OSError as error:
        result["energy"] = str(error)
        return
    begun = last = clock()
    clocks, count = [meter.megahertz()], 0
    while clock() - begun < ENERGY or count < 5:
        yield
        count += 1
        if clock() - last > 0.1:
            clocks.append(meter.megahertz())
            last = clock()
    wait()
    ended = clock()
    second = meter.edge()
    result["joules_per_step"] = round((second[0] - first[0]) / count, 4)
    result["energy"] = {"steps": count, "s": round(second[1] - first[1], 4), "tail_s": round(second[1] - ended, 4)}
    result["sm_mhz"] = round(sum(clocks[1:] or clocks) / len(clocks[1:] or clocks))


def measure(name: str, variant: str, *, profiled: bool = False, tiny: bool = False) -> dict[str, Any]:
    """Run a variant of a program: before, after, or the names of changes. Return its times."""
    changes = {"before": "", "after": PROGRAMS[name][0]}.get(variant, variant)
    job = Job({change for change in changes.split(",") if change}, tiny=tiny)
    torch.manual_seed(0)
    built = clock()
    step = PROGRAMS[name][1](job)
    result: dict[str, Any] = {"program": name, "variant": variant, "changes": changes}
    plan, over = phases(result, profiled), object()
    next(plan)
    if isinstance(step, Loop):
        step.run(lambda: next(plan, over) is over)
    else:
        for index in itertools.count():
            step(index)
            if next(plan, over) is over:
                break
    result["whole_s"] = round(clock() - built, 2)
    if cannot := job.changes - job.known:
        raise ValueError(f"{name} has no switch for {', '.join(sorted(cannot))}; it has {', '.join(sorted(job.known))}")
    return result | {"known": sorted(job.known)}


def write(path: Path, name: str, variant: str, **options: bool) -> None:
    """Measure, and write the result to a file at once or not at all."""
    result = measure(name, variant, **options)
    path.with_suffix(".part").write_text(json.dumps(result) + "\n")
    path.with_suffix(".part").rename(path)
