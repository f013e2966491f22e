"""The rate of the link between host and GPU, by the name of the GPU."""

from __future__ import annotations

from collections.abc import Mapping

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
