#!/usr/bin/env python3
"""Measure what nsys adds to CUDA calls on this machine, relative to the reference machine of docs/unprofiled.md.

    python benchmarks/calibrate.py [--nsys PROGRAM] [--rounds N]

Times four calls of the driver in tight loops, without nsys and under it, in turns. It needs a GPU that does nothing
else, and neither PyTorch nor a compiler. Prints what nsys adds to each call, and the scale: their sum relative to the
reference. In Python, `analyze(report, costs=ESTIMATE.scaled(scale**0.5))` takes it (traceview/model/unprofiled.py):
calls are longer on a slow machine, and cost more for that already.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from ctypes import byref, c_int, c_uint, c_void_p
from pathlib import Path
from statistics import median
from time import perf_counter_ns

# What nsys 2024.2 adds to calls on the reference machine, in ns: means of three calibrations of an H200 host that did
# nothing else, whose scales are 0.98, 1.00 and 1.02. The calls take little time of their own, so that the difference of
# two runs is precise.
REFERENCE: Mapping[str, int] = {
    "cuEventQuery": 240,
    "cuStreamWaitEvent": 256,
    "cuStreamSynchronize": 255,
    "cuEventSynchronize": 256,
}
BATCHES, CALLS = 21, 100  # batches of each call, the first of which warms up, and calls in a batch
UNDER_NSYS = ("profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true")


def time_calls() -> dict[str, list[float]]:
    """Return the ns of a call in each batch, with the loop around it. An idle stream makes each call return at once."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            sys.exit(f"{name} returned {code}: is there a GPU?")

    device, context, stream, event = c_int(), c_void_p(), c_void_p(), c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", byref(device), 0)
    call("cuDevicePrimaryCtxRetain", byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuStreamCreate", byref(stream), 1)
    call("cuEventCreate", byref(event), 0)
    call("cuEventRecord", event, stream)
    call("cuCtxSynchronize")
    arguments = {
        "cuEventQuery": (event,),
        "cuStreamWaitEvent": (stream, event, c_uint(0)),
        "cuStreamSynchronize": (stream,),
        "cuEventSynchronize": (event,),
    }
    times: dict[str, list[float]] = {name: [] for name in arguments}
    for _ in range(BATCHES):
        for name, given in arguments.items():
            function = getattr(cuda, name)
            began = perf_counter_ns()
            for _ in range(CALLS):
                function(*given)
            times[name].append((perf_counter_ns() - began) / CALLS)
            call("cuCtxSynchronize")
    return {name: batches[1:] for name, batches in times.items()}


def run(before: Sequence[str]) -> dict[str, list[float]]:
    """Return the times of one run of this script behind the words of a command."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*before, sys.executable, str(Path(__file__).resolve()), "--times", "times.json"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        times: dict[str, list[float]] = json.loads((Path(folder) / "times.json").read_text())
        return times


def added_ns(
    plain: Sequence[Mapping[str, list[float]]], traced: Sequence[Mapping[str, list[float]]]
) -> dict[str, float]:
    """Return the ns that nsys adds to each call: the difference of the medians of all batches.

    Cores of a shared host switch between two speeds, 1.5 apart, for seconds: single rounds differ by half.
    """
    without, under = (
        {name: median(ns for times in runs for ns in times[name]) for name in REFERENCE} for runs in (plain, traced)
    )
    return {name: under[name] - without[name] for name in REFERENCE}


def main() -> None:
    """Print what nsys adds to each call, and the scale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nsys", default="nsys")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.times is not None:
        options.times.write_text(json.dumps(time_calls()))
        return
    plain, traced = [], []
    for _ in range(options.rounds):
        plain.append(run(()))
        traced.append(run((options.nsys, *UNDER_NSYS, "--output=calibration")))
    added = added_ns(plain, traced)
    for name, ns in added.items():
        print(f"{name:20} {ns:6,.0f} ns; {REFERENCE[name]} on the reference machine")
    print(f"scale {max(sum(added.values()), 0) / sum(REFERENCE.values()):.2f}")


if __name__ == "__main__":
    main()
