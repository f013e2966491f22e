"""Matrix products and convolutions in TF32 or bfloat16 on tensor cores.

A kernel becomes faster by the ratio of the peaks, and reaches less of the higher peak, because memory and launch take
their part. On an H200, TF32 left 0.19 to 0.28 and bfloat16 0.09 to 0.22 of the time of FP32 kernels, casts included
(GPT-2, BERT, ViT and ResNet-50; docs/whatif.md).
"""

from __future__ import annotations

import numpy as np

from traceview.measure.kernels.families import KernelKind
from traceview.model.peaks import peak_flops
from traceview.speedups.base import MATRIX, Estimate, KernelSequence, Mask, Speedup, scaled, share_of

# Time left, times the ratio of the peaks.
TF32_SPREAD = (1.33, 1.63, 2.0)
BF16_SPREAD = (1.25, 2.2, 3.4)
HALVED = (0.4, 0.5, 0.8)  # of the time of TF32 kernels in bfloat16


def _left(
    kernels: KernelSequence, precision: str, spread: tuple[float, float, float]
) -> tuple[float, float, float] | None:
    fp32, tensor = (peak_flops(kernels.gpu, name) for name in ("fp32", precision))
    if fp32 is None or tensor is None:
        return None
    low, middle, high = (min(1.0, fp32 / tensor * factor) for factor in spread)
    return low, middle, high


def tf32(kernels: KernelSequence) -> Estimate | str:
    """Return what TF32 leaves of FP32 matrix kernels that do not use tensor cores."""
    chosen = kernels.where(_is_fp32_matrix)
    if not chosen.any():
        return "no matrix product or convolution runs in FP32 without tensor cores"
    left = _left(kernels, "tf32", TF32_SPREAD)
    if left is None or left[1] > 0.9:
        return f"the gain of TF32 on this GPU ({kernels.gpu or 'unknown'}) is not known"
    return scaled(kernels, chosen, left, _share_text(kernels, chosen, "FP32 without tensor cores"))


def bf16(kernels: KernelSequence) -> Estimate | str:
    """Return what autocast to bfloat16 leaves of matrix kernels in FP32 or TF32, casts included."""
    fp32 = kernels.where(_is_fp32_matrix)
    tensor = kernels.where(lambda kind: kind.family in MATRIX and kind.precision == "tf32")
    if not (fp32 | tensor).any():
        return "no matrix product or convolution runs in FP32 or TF32"
    left = _left(kernels, "bf16", BF16_SPREAD)
    if left is None:
        return f"the gain of bfloat16 on this GPU ({kernels.gpu or 'unknown'}) is not known"
    low, middle, high = (
        np.where(fp32, full, np.where(tensor, half, 1.0)) for full, half in zip(left, HALVED, strict=True)
    )
    detail = _share_text(kernels, fp32 | tensor, "FP32 or TF32")
    return Estimate(low, middle, high, np.zeros(len(fp32), np.bool_), detail)


def _is_fp32_matrix(kind: KernelKind) -> bool:
    if kind.label.startswith("fft2d_") or "gcgemm" in kind.label:  # parts of cuDNN's FP32 convolutions
        return True
    return kind.family in MATRIX and kind.precision == "fp32" and kind.tensor_core is False


def _share_text(kernels: KernelSequence, chosen: Mask, how: str) -> str:
    return f"{share_of(kernels, chosen)} of the kernel time is matrix products and convolutions in {how}"


TF32 = Speedup("tf32", "Allow TF32 for matrix products", "inputs with 10-bit mantissas", tf32)
BF16 = Speedup("bf16", "Autocast to bfloat16", "inputs with 7-bit mantissas", bf16)
