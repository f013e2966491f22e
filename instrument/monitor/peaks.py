"""The most floating-point operations per second that a GPU can do: what MFU is a fraction of.

Dense figures; where NVIDIA states them with sparsity, half of that. Sources, all by NVIDIA: the data sheets of HGX
B200, GB200 NVL72, H200, H100, GH200, A100, A10, A10G (as used by AWS), A40, L4, L40, L40S, RTX 6000 Ada, V100 and T4;
for RTX A6000 and 3090 the GA102 whitepaper, for 4080 and 4090 the Ada whitepaper, for 5090 the RTX Blackwell
whitepaper. For GeForce, half precision is with fp32 accumulation, which torch computes with: half the rate of fp16's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

VENDOR = re.compile(r"NVIDIA |Tesla |GeForce ")


@dataclass(frozen=True, slots=True)
class Peak:
    """One GPU's peaks in TFLOP/s; None where it cannot compute so.

    Attributes:
        name: a pattern that the whole device name matches, without its vendor and family.
        half: bf16 and fp16 on tensor cores.
        tf32: fp32 data on tensor cores.
        fp32: without tensor cores.
        bf16: whether bf16 is among the halves.
    """

    name: str
    half: float
    tf32: float | None
    fp32: float | None
    bf16: bool = True


# Names match whole: a MIG slice, a laptop's chip or another memory size is another device.
PEAKS = (
    Peak(r"GB200", 2500, 1250, 80),
    Peak(r"B200", 2250, 1125, 75),
    Peak(r"H200", 989, 494, 67),
    Peak(r"H200 NVL", 835, 417, 60),
    Peak(r"GH200 .*", 989, 494, 67),
    Peak(r"H100 (80|96)GB HBM3", 989, 494, 67),
    Peak(r"H100 NVL", 835, 417, 60),
    Peak(r"H100 PCIe", 756, 378, 51),
    Peak(r"A100-SXM4-(40|80)GB|A100-PCIE-(40|80)GB|A100 80GB PCIe", 312, 156, 19.5),
    Peak(r"A10", 125, 62.5, 31.2),
    Peak(r"A10G", 70, 35, None),
    Peak(r"A40", 149.7, 74.8, 37.4),
    Peak(r"RTX A6000", 154.8, 77.4, 38.7),
    Peak(r"L4", 121, 60, 30.3),
    Peak(r"L40", 181, 90.5, 90.5),
    Peak(r"L40S", 362, 183, 91.6),
    Peak(r"RTX 6000 Ada Generation", 364.2, 182.1, 91.1),
    Peak(r"RTX 3090", 71, 35.6, 35.6),
    Peak(r"RTX 4080", 97.5, 48.7, 48.7),
    Peak(r"RTX 4090", 165.2, 82.6, 82.6),
    Peak(r"RTX 5090", 209.5, 104.8, 104.8),
    Peak(r"V100-SXM2-(16|32)GB", 125, None, 15.7, bf16=False),
    Peak(r"V100-PCIE-(16|32)GB", 112, None, 14, bf16=False),
    Peak(r"T4", 65, None, 8.1, bf16=False),
)


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return a GPU's peak in FLOP/s, dense, or None where it is not known.

    Args:
        device_name: as `torch.cuda.get_device_name` says it.
        precision: "bf16", "fp16", "tf32" (fp32 with `torch.set_float32_matmul_precision("high")`) or "fp32".
    """
    name = VENDOR.sub("", device_name)
    for peak in PEAKS:
        if re.fullmatch(peak.name, name) and "MIG" not in name:
            return _of(peak, precision)
    return None


def _of(peak: Peak, precision: str) -> float | None:
    rates = {"bf16": peak.half if peak.bf16 else None, "fp16": peak.half, "tf32": peak.tf32, "fp32": peak.fp32}
    rate = rates.get(precision)
    return None if rate is None else rate * 1e12
