"""Peak floating-point rates of GPUs by precision, and the rates of their links to the host, with sources.

The floating-point rates are dense: half of those with sparsity. Sources: NVIDIA's data sheets of HGX B200, GB200
NVL72, H200, H100, H800, GH200, A100, A800, A30, A10, A10G (as used by AWS), A40, L4, L40, L40S, RTX 6000 Ada, V100
and T4; for RTX A6000 and 3090 the GA102 whitepaper, for 4080 and 4090 the Ada whitepaper, for 5090 the RTX Blackwell
whitepaper; AMD's data sheet of MI300X. GeForce rates of half precision and fp8 use fp32 accumulation, as PyTorch does:
half the rate of accumulation in fp16.

`instrument.monitor.peaks` has the same floating-point rates, because neither package imports the other; a test compares
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

TERA = 10**12
VENDOR = re.compile(r"NVIDIA |Tesla |GeForce ")


@dataclass(frozen=True, slots=True)
class GpuPeaks:
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
    tf32: float | None
    fp32: float | None
    fp8: float | None = None
    fp4: float | None = None
    fp64: float | None = None
    fp64_tensor: float | None = None
    bf16: bool = True


# Names match completely: MIG slices, laptop GPUs and other memory sizes are different devices.
PEAKS = (
    GpuPeaks(r"GB200", 2500, 1250, 80, 5000, 10000, 40, 40),
    GpuPeaks(r"B200", 2250, 1125, 75, 4500, 9000, 37, 37),
    GpuPeaks(r"H200", 989, 494, 67, 1979, None, 34, 67),
    GpuPeaks(r"H200 NVL", 835, 417, 60, 1671, None, 30, 60),
    GpuPeaks(r"GH200 .*", 989, 494, 67, 1979, None, 34, 67),
    GpuPeaks(r"H100 (80|96)GB HBM3", 989, 494, 67, 1979, None, 34, 67),
    GpuPeaks(r"H100 NVL", 835, 417, 60, 1671, None, 30, 60),
    GpuPeaks(r"H100 PCIe", 756, 378, 51, 1513, None, 26, 51),
    GpuPeaks(r"H800", 989, 494, 67, 1979),
    GpuPeaks(r"A[18]00-SXM4-(40|80)GB|A[18]00-PCIE-(40|80)GB|A[18]00 80GB PCIe", 312, 156, 19.5, None, None, 9.7, 19.5),
    GpuPeaks(r"A30", 165, 82, 10.3, None, None, 5.2, 10.3),
    GpuPeaks(r"A10", 125, 62.5, 31.2),
    GpuPeaks(r"A10G", 70, 35, None),
    GpuPeaks(r"A40", 149.7, 74.8, 37.4),
    GpuPeaks(r"RTX A6000", 154.8, 77.4, 38.7),
    GpuPeaks(r"L4", 121, 60, 30.3, 242),
    GpuPeaks(r"L40", 181, 90.5, 90.5, 362),
    GpuPeaks(r"L40S", 362, 183, 91.6, 733),
    GpuPeaks(r"RTX 6000 Ada Generation", 364.2, 182.1, 91.1, 728.5),
    GpuPeaks(r"RTX 3090", 71, 35.6, 35.6),
    GpuPeaks(r"RTX 4080", 97.5, 48.7, 48.7, 194.9),
    GpuPeaks(r"RTX 4090", 165.2, 82.6, 82.6, 330.3),
    GpuPeaks(r"RTX 5090", 209.5, 104.8, 104.8, 419),
    GpuPeaks(r"V100-SXM2-(16|32)GB", 125, None, 15.7, None, None, 7.8, bf16=False),
    GpuPeaks(r"V100-PCIE-(16|32)GB", 112, None, 14, None, None, 7, bf16=False),
    GpuPeaks(r"T4", 65, None, 8.1, bf16=False),
    GpuPeaks(r"AMD Instinct MI300X", 1307.4, 653.7, 163.4, 2614.9, None, 81.7, 163.4),
)


@cache
def gpu_peaks(device_name: str) -> GpuPeaks | None:
    """Return the peaks of a GPU by the name that CUDA gives it; None if they are unknown."""
    name = VENDOR.sub("", device_name)
    return next((peaks for peaks in PEAKS if re.fullmatch(peaks.name, name)), None)


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


# Rate of large copies from pinned host memory to the GPU, in bytes/ns, by the first GPU name that matches. It is about
# 87% of the link's 63, 31.5 and 15.8 GB/s (PCIe 5.0, 4.0, 3.0 x16; NVLink-C2C: 450 GB/s). 55.4 GB/s is measured on the
# H200 (samples/trainer/pinned.sqlite).
PINNED_RATE: Mapping[str, float] = {
    "GB200": 350.0,
    "GH200": 350.0,
    "H200": 55.4,
    "H100": 55.0,
    "B200": 55.0,
    "A100": 25.0,
    "L40": 25.0,
    "A10": 25.0,
    "V100": 12.5,
    "T4": 12.5,
}
OTHER_PINNED_RATE = 25.0


def pinned_rate(gpu: str) -> float:
    """Return the rate of pinned copies on a GPU of this name, in bytes/ns."""
    return next((rate for name, rate in PINNED_RATE.items() if name in gpu), OTHER_PINNED_RATE)
