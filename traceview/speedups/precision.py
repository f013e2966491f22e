"""Matrix products and convolutions in TF32 or bfloat16 on tensor cores.

A kernel becomes faster by the ratio of the peaks, and reaches less of the higher peak. How much less depends on
properties that the name of its FP32 kernel shows: the order of the operands (in TF32, Hopper's tensor cores read
operands in one order only, and weight gradients, `nt`, have the other one), a vocabulary that is not padded, or a
convolution, around which cuDNN converts the layout. The fractions are those of GPT-2, BERT and ResNet-50 on an H200
(docs/whatif.md).
"""

from __future__ import annotations

from typing import NamedTuple

from traceview.measure.kernels.families import MATRIX, KernelKind
from traceview.model.peaks import peak_flops
from traceview.speedups.base import KernelSequence, Mask
from traceview.speedups.shapes import has_unpadded_vocabulary, head_products
from traceview.speedups.steps import Members, Range, Speedup, SpeedupDecision, Totals

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


FP32_GROUPS, VOCABULARY = ("fp32", "transposed", "head", "convolution"), ("loss", "fill")
BF16_GROUPS = (*FP32_GROUPS, "tensor", "attention", "normalization", "elementwise", "nchw", *VOCABULARY)


def _fp32_products(kernels: KernelSequence) -> Members:
    """Choose FP32 matrix kernels that do not use tensor cores, in groups by their names."""
    return Members(_fp32_groups(kernels, kernels.where(_is_fp32_matrix)))


def _is_fp32_matrix(kind: KernelKind) -> bool:
    if kind.label.startswith("fft2d_") or "gcgemm" in kind.label:  # parts of cuDNN's FP32 convolutions
        return True
    return kind.family in MATRIX and kind.precision == "fp32" and kind.tensor_core is False


def _fp32_groups(kernels: KernelSequence, fp32: Mask) -> dict[str, Mask]:
    head = head_products(kernels)
    return {
        **head,
        "fp32": fp32,
        "transposed": fp32 & kernels.matches(r"_nt(_|$)"),
        "head": fp32 & head["head"],
        "convolution": fp32 & ~kernels.in_families("gemm", "attention"),
    }


def _products_below_bf16(kernels: KernelSequence) -> Members:
    """Choose matrix kernels in FP32 or TF32, and kernels of an image network that run faster in bfloat16."""
    fp32 = kernels.where(_is_fp32_matrix)
    tensor = kernels.where(lambda kind: kind.family in MATRIX and kind.precision == "tf32")
    groups = _fp32_groups(kernels, fp32)
    groups["head"] |= tensor & head_products(kernels)["head"]
    return Members(
        {
            **groups,
            "tensor": tensor,
            "attention": tensor & kernels.in_families("attention"),
            "normalization": kernels.matches("bn_(fw|bw)|batch_norm"),
            "elementwise": kernels.in_families("elementwise"),
            "nchw": kernels.matches("nchwToNhwc|_NCHW<"),
        }
    )


def _products_on_old_gpu(kernels: KernelSequence) -> Members:
    return _fp32_products(kernels) if peak_flops(kernels.gpu, "tf32") is None else Members({})


def _decide_tf32(totals: Totals) -> SpeedupDecision | str:
    """Return what TF32 leaves of FP32 matrix kernels that do not use tensor cores."""
    if not totals.count("fp32"):
        return "no matrix product or convolution runs in FP32 without tensor cores"
    left = _fractions_left(totals, "tf32", TF32_LEFT, ELSEWHERE[0])
    if left is None or left["fp32"][1] > 0.9:
        return f"the gain of TF32 on this GPU ({totals.gpu or 'unknown'}) is not known"
    return SpeedupDecision(_evidence(totals, "FP32 without tensor cores", "fp32"), left)


def _decide_bf16(totals: Totals) -> SpeedupDecision | str:
    """Return what autocast to bfloat16 leaves of matrix kernels in FP32 or TF32, casts included."""
    if not totals.count("fp32", "tensor"):
        return "no matrix product or convolution runs in FP32 or TF32"
    left = _fractions_left(totals, "bf16", BF16_LEFT, ELSEWHERE[1])
    if left is None:
        return f"the gain of bfloat16 on this GPU ({totals.gpu or 'unknown'}) is not known"
    left |= {"tensor": HALVED, "attention": ATTENTION_LEFT}
    if totals.count("nchw"):
        left |= {"normalization": NORMALIZATION_LEFT, "elementwise": ELEMENTWISE_LEFT}
    return SpeedupDecision(_evidence(totals, "FP32 or TF32", "fp32", "tensor"), left)


def _decide_fp16(totals: Totals) -> SpeedupDecision | str:
    """Return what autocast to FP16 leaves of FP32 matrix kernels on a GPU without TF32 (Volta, Turing)."""
    if not totals.count("fp32"):
        return "no matrix product or convolution runs in FP32 on a GPU without TF32"
    left = _fractions_left(totals, "fp16", ELSEWHERE[1], ELSEWHERE[1])
    if left is None:
        return f"the gain of FP16 on this GPU ({totals.gpu or 'unknown'}) is not known"
    return SpeedupDecision(_evidence(totals, "FP32 without tensor cores", "fp32"), left)


def _fractions_left(
    totals: Totals, precision: str, spread: FractionsLeft, elsewhere: FractionsLeft
) -> dict[str, Range] | None:
    """Return the time left of each group of FP32 kernels; None on an unknown GPU."""
    fp32, tensor = (peak_flops(totals.gpu, name) for name in ("fp32", precision))
    if fp32 is None or tensor is None:
        return None
    used, ratio = spread if any(name in totals.gpu for name in MEASURED) else elsewhere, fp32 / tensor
    left = {"fp32": used.product, "transposed": used.transposed, "convolution": used.convolution}
    if has_unpadded_vocabulary(totals):
        left["head"] = used.unpadded
    return {group: (low * ratio, middle * ratio, high * ratio) for group, (low, middle, high) in left.items()}


def _evidence(totals: Totals, precision: str, *groups: str) -> str:
    text = f"{totals.share(*groups)} of the kernel time is matrix products and convolutions in {precision}"
    if has_unpadded_vocabulary(totals) and totals.count("head"):
        text += f", {totals.share('head')} with a vocabulary that is not a multiple of 8, which gain less"
    return text


TF32 = Speedup(
    "tf32",
    "Allow TF32 for matrix products",
    "inputs with 10-bit mantissas",
    (*FP32_GROUPS, *VOCABULARY),
    _fp32_products,
    _decide_tf32,
    blocks=VOCABULARY,
)
FP16 = Speedup(
    "fp16",
    "Autocast to FP16",
    "a scaled loss, inputs with 10-bit mantissas",
    (*FP32_GROUPS, *VOCABULARY),
    _products_on_old_gpu,
    _decide_fp16,
    blocks=VOCABULARY,
)
BF16 = Speedup(
    "bf16",
    "Autocast to bfloat16",
    "inputs with 7-bit mantissas",
    BF16_GROUPS,
    _products_below_bf16,
    _decide_bf16,
    blocks=VOCABULARY,
)
