"""Peak floating-point operations per second of GPUs, for the model FLOPs utilisation (MFU).

The values are dense: half of the value with sparsity. Sources, all by NVIDIA: the data sheets of HGX
B200, GB200 NVL72, H200, H100, GH200, A100, A10, A10G (as used by AWS), A40, L4, L40, L40S, RTX 6000 Ada, V100 and T4;
for RTX A6000 and 3090 the GA102 whitepaper, for 4080 and 4090 the Ada whitepaper, for 5090 the RTX Blackwell
whitepaper. GeForce values for half precision use fp32 accumulation, as torch does: half the rate of fp16 accumulation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

VENDOR = re.compile(r"NVIDIA |Tesla |GeForce ")


@dataclass(frozen=True, slots=True)
class PeakRates:
    """Peak rates of one GPU in TFLOP/s; None if the GPU does not support the mode.

    Attributes:
        name: regular expression for the complete device name without vendor and family.
        half: bf16 and fp16 on tensor cores.
        tf32: fp32 data on tensor cores.
        fp32: without tensor cores.
        bf16: whether `half` applies to bf16.
    """

    name: str
    half: float
    tf32: float | None
    fp32: float | None
    bf16: bool = True


# Names match completely: MIG slices, laptop GPUs and other memory sizes are different devices.
PEAKS = (
    PeakRates(r"GB200", 2500, 1250, 80),
    PeakRates(r"B200", 2250, 1125, 75),
    PeakRates(r"H200", 989, 494, 67),
    PeakRates(r"H200 NVL", 835, 417, 60),
    PeakRates(r"GH200 .*", 989, 494, 67),
    PeakRates(r"H100 (80|96)GB HBM3", 989, 494, 67),
    PeakRates(r"H100 NVL", 835, 417, 60),
    PeakRates(r"H100 PCIe", 756, 378, 51),
    PeakRates(r"A100-SXM4-(40|80)GB|A100-PCIE-(40|80)GB|A100 80GB PCIe", 312, 156, 19.5),
    PeakRates(r"A10", 125, 62.5, 31.2),
    PeakRates(r"A10G", 70, 35, None),
    PeakRates(r"A40", 149.7, 74.8, 37.4),
    PeakRates(r"RTX A6000", 154.8, 77.4, 38.7),
    PeakRates(r"L4", 121, 60, 30.3),
    PeakRates(r"L40", 181, 90.5, 90.5),
    PeakRates(r"L40S", 362, 183, 91.6),
    PeakRates(r"RTX 6000 Ada Generation", 364.2, 182.1, 91.1),
    PeakRates(r"RTX 3090", 71, 35.6, 35.6),
    PeakRates(r"RTX 4080", 97.5, 48.7, 48.7),
    PeakRates(r"RTX 4090", 165.2, 82.6, 82.6),
    PeakRates(r"RTX 5090", 209.5, 104.8, 104.8),
    PeakRates(r"V100-SXM2-(16|32)GB", 125, None, 15.7, bf16=False),
    PeakRates(r"V100-PCIE-(16|32)GB", 112, None, 14, bf16=False),
    PeakRates(r"T4", 65, None, 8.1, bf16=False),
)


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return the dense peak rate of a GPU in FLOP/s; None if it is unknown.

    Args:
        device_name: the result of `torch.cuda.get_device_name`.
        precision: "bf16", "fp16", "tf32" (fp32 with `torch.set_float32_matmul_precision("high")`) or "fp32".
    """
    name = VENDOR.sub("", device_name)
    for peak in PEAKS:
        if re.fullmatch(peak.name, name) and "MIG" not in name:
            half = {"bf16": peak.half if peak.bf16 else None, "fp16": peak.half}
            rate = {**half, "tf32": peak.tf32, "fp32": peak.fp32}.get(precision)
            return None if rate is None else rate * 1e12
    return None
