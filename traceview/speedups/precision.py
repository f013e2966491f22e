"""Matrix products and convolutions in TF32 or bfloat16 on tensor cores.

A kernel becomes faster by the ratio of the peaks, and reaches less of the higher peak. How much less depends on
properties that the name of its FP32 kernel shows: the order of the operands (in TF32, Hopper's tensor cores read
operands in one order only, and weight gradients, `nt`, have the other one), a vocabulary that is not padded, or a
convolution, around which cuDNN converts the layout. The fractions are those of GPT-2, BERT and ResNet-50 on an H200
(docs/whatif.md).
"""

from __future__ import annotations

from typing import NamedTuple

from traceview.measure.kernels.families import KernelKind
from traceview.model.peaks import peak_flops
from traceview.speedups.base import MATRIX, Estimate, KernelSequence, Mask, Range, Speedup, grouped
from traceview.speedups.shapes import unpadded_vocabulary

MEASURED = ("H100", "H200", "GH200", "H800")  # GPUs of the generation on which the fractions were measured


class FractionsLeft(NamedTuple):
    """The time left of FP32 kernels, times the ratio of the peaks, by what they compute.

    `transposed` are products in order `nt`, `unpadded` those with a vocabulary that is not a multiple of 8.
    """

    product: Range
    transposed: Range
    unpadded: Range
    convolution: Range


TF32_LEFT = FractionsLeft((0.96, 1.12, 1.4), (1.85, 2.09, 2.4), (2.7, 3.0, 3.4), (1.7, 2.05, 2.5))
# Autocast's casts included: they take as long as the products themselves.
BF16_LEFT = FractionsLeft((1.45, 1.85, 2.5), (1.45, 1.85, 2.5), (6.2, 7.0, 7.8), (1.3, 2.2, 3.2))
ELSEWHERE = FractionsLeft(*[(1.2, 1.63, 2.2)] * 4), FractionsLeft(*[(1.2, 2.2, 3.4)] * 4)
# In bfloat16, of TF32 kernels, of attention in TF32, and where convolutions and batch normalization are in NCHW layout
# (ResNet-50), of normalization, for which PyTorch has slower kernels then, and of elementwise kernels.
HALVED, ATTENTION_LEFT = (0.45, 0.5, 0.58), (0.14, 0.18, 0.26)
NORMALIZATION_LEFT, ELEMENTWISE_LEFT = (1.25, 1.4, 1.48), (0.48, 0.5, 0.6)


def tf32(kernels: KernelSequence) -> Estimate | str:
    """Return what TF32 leaves of FP32 matrix kernels that do not use tensor cores."""
    chosen = kernels.where(_is_fp32_matrix)
    if not chosen.any():
        return "no matrix product or convolution runs in FP32 without tensor cores"
    groups = _groups(kernels, chosen, "tf32", TF32_LEFT, ELSEWHERE[0])
    if groups is None or groups[0][1][1] > 0.9:
        return f"the gain of TF32 on this GPU ({kernels.gpu or 'unknown'}) is not known"
    return grouped(kernels, groups, _evidence(kernels, chosen, "FP32 without tensor cores"))


def bf16(kernels: KernelSequence) -> Estimate | str:
    """Return what autocast to bfloat16 leaves of matrix kernels in FP32 or TF32, casts included."""
    fp32 = kernels.where(_is_fp32_matrix)
    tensor = kernels.where(lambda kind: kind.family in MATRIX and kind.precision == "tf32")
    if not (fp32 | tensor).any():
        return "no matrix product or convolution runs in FP32 or TF32"
    groups = _groups(kernels, fp32, "bf16", BF16_LEFT, ELSEWHERE[1])
    if groups is None:
        return f"the gain of bfloat16 on this GPU ({kernels.gpu or 'unknown'}) is not known"
    groups += [(tensor, HALVED), (tensor & kernels.in_families("attention"), ATTENTION_LEFT)]
    if kernels.matches("nchwToNhwc|_NCHW<").any():
        groups.append((kernels.matches("bn_(fw|bw)|batch_norm"), NORMALIZATION_LEFT))
        groups.append((kernels.in_families("elementwise"), ELEMENTWISE_LEFT))
    return grouped(kernels, groups, _evidence(kernels, fp32 | tensor, "FP32 or TF32"))


def fp16(kernels: KernelSequence) -> Estimate | str:
    """Return what autocast to FP16 leaves of FP32 matrix kernels on a GPU without TF32 (Volta, Turing)."""
    chosen = kernels.where(_is_fp32_matrix)
    if not chosen.any():
        return "no matrix product or convolution runs in FP32"
    groups = _groups(kernels, chosen, "fp16", ELSEWHERE[1], ELSEWHERE[1])
    if groups is None or peak_flops(kernels.gpu, "tf32") is not None:
        return "FP16 is not the only precision of this GPU's tensor cores"
    return grouped(kernels, groups, _evidence(kernels, chosen, "FP32 without tensor cores"))


def _is_fp32_matrix(kind: KernelKind) -> bool:
    if kind.label.startswith("fft2d_") or "gcgemm" in kind.label:  # parts of cuDNN's FP32 convolutions
        return True
    return kind.family in MATRIX and kind.precision == "fp32" and kind.tensor_core is False


def _groups(
    kernels: KernelSequence, chosen: Mask, precision: str, spread: FractionsLeft, elsewhere: FractionsLeft
) -> list[tuple[Mask, Range]] | None:
    """Return the chosen FP32 kernels in groups by their names, with the time left of each; None on an unknown GPU."""
    fp32, tensor = (peak_flops(kernels.gpu, name) for name in ("fp32", precision))
    if fp32 is None or tensor is None:
        return None
    used = spread if any(name in kernels.gpu for name in MEASURED) else elsewhere
    ratio = fp32 / tensor
    masks = (
        chosen,
        chosen & kernels.matches(r"_nt(_|$)"),
        chosen & unpadded_vocabulary(kernels),
        chosen & ~kernels.in_families("gemm", "attention"),
    )
    return [
        (mask, (low * ratio, middle * ratio, high * ratio))
        for mask, (low, middle, high) in zip(masks, used, strict=True)
    ]


def _evidence(kernels: KernelSequence, chosen: Mask, precision: str) -> str:
    unpadded = chosen & unpadded_vocabulary(kernels)
    part = kernels.shown_part(f"{precision} products", chosen)[1]
    text = f"{part} of the kernel time is matrix products and convolutions in {precision}"
    count, part = kernels.shown_part(f"{precision} vocabulary", unpadded)
    if count:
        text += f", {part} with a vocabulary that is not a multiple of 8, which gain less"
    return text


TF32 = Speedup("tf32", "Allow TF32 for matrix products", "inputs with 10-bit mantissas", tf32)
FP16 = Speedup("fp16", "Autocast to FP16", "a scaled loss, inputs with 10-bit mantissas", fp16)
BF16 = Speedup("bf16", "Autocast to bfloat16", "inputs with 7-bit mantissas", bf16)
