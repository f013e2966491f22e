"""Peak floating-point rates of GPUs by precision, and rates of their links to the host: peaks.toml, with sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from traceview.model.catalogue import read_toml

TERA = 10**12
VENDOR = re.compile(r"NVIDIA |Tesla |GeForce ")


class GpuPeaks(NamedTuple):
    """Peak rates of a GPU in TFLOP/s by precision; None if the GPU does not support it or no source states it.

    Attributes:
        name: regular expression for the complete name of the device, without vendor and family.
        half: bf16 and fp16 on tensor cores.
        tf32: fp32 data on tensor cores.
        fp32: without tensor cores.
        fp8: on tensor cores.
        fp4: on tensor cores.
        fp64: without tensor cores.
        fp64_tensor: fp64 on tensor cores.
        bf16: whether `half` applies to bf16.
    """

    name: str
    half: float
    tf32: float | None = None
    fp32: float | None = None
    fp8: float | None = None
    fp4: float | None = None
    fp64: float | None = None
    fp64_tensor: float | None = None
    bf16: bool = True


_RATES = read_toml(Path(__file__).with_name("peaks.toml"))
PEAKS = tuple(GpuPeaks(**row) for row in _RATES["gpus"])
PINNED_RATE: Mapping[str, float] = _RATES["pinned_rate"]
OTHER_PINNED_RATE = 25.0


@cache
def gpu_peaks(device_name: str) -> GpuPeaks | None:
    """Return the peaks of a GPU by the name that CUDA gives it; None if they are unknown."""
    name = VENDOR.sub("", device_name)
    return next((peaks for peaks in PEAKS if re.fullmatch(peaks.name, name) and "MIG" not in name), None)


def peak_flops(device_name: str, precision: str, *, tensor_core: bool = True) -> int | None:
    """Return the dense peak rate of a GPU in FLOP/s; None if it is unknown.

    `precision` is a name of `measure.kernels.families`: fp64, fp32, tf32, bf16, fp16, fp8 or fp4. FP32 always means
    without tensor cores, and `tensor_core` chooses between the two rates of FP64.
    """
    peaks = gpu_peaks(device_name)
    if peaks is None:
        return None
    rates = {
        "fp64": peaks.fp64_tensor if tensor_core and peaks.fp64_tensor else peaks.fp64,
        "fp32": peaks.fp32,
        "tf32": peaks.tf32,
        "bf16": peaks.half if peaks.bf16 else None,
        "fp16": peaks.half,
        "fp8": peaks.fp8,
        "fp4": peaks.fp4,
    }
    rate = rates.get(precision)
    return None if rate is None else round(rate * TERA)


def memory_rate(device_name: str) -> float | None:
    """Return the rate of a GPU's memory in bytes/ns; None if it is unknown."""
    name = VENDOR.sub("", device_name)
    return next((row["rate"] for row in _RATES["memory"] if re.fullmatch(row["name"], name)), None)


def pinned_rate(gpu: str) -> float:
    """Return the rate of pinned copies on a GPU of this name, in bytes/ns."""
    return next((rate for name, rate in PINNED_RATE.items() if name in gpu), OTHER_PINNED_RATE)
