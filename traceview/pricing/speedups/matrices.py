"""Matrix products and convolutions: of better shapes, and in TF32 or bfloat16 on tensor cores.

Better shapes are channels last, dimensions that are multiples of 8, and many small products at once.

At a lower precision, a kernel becomes faster by the ratio of the peaks, and reaches less of the higher peak. How much
less depends on properties that the name of its FP32 kernel shows: the order of the operands (in TF32, Hopper's tensor
cores read operands in one order only, and weight gradients, `nt`, have the other one), a vocabulary that is not padded,
or a convolution, around which cuDNN converts the layout. The fractions are those of GPT-2, BERT and ResNet-50 on an
H200 (docs/whatif.md).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import index_ranges, runs
from traceview.measure.kernels.families import MATRIX
from traceview.model.peaks import peak_flops
from traceview.pricing.speedups.steps import (
    ODD_PRODUCT,
    KernelSequence,
    Mask,
    Members,
    Range,
    Speedup,
    SpeedupDecision,
    Totals,
)

TENSOR_CORE, IN_MATRIX = pl.col("tensor_core"), pl.col("family").is_in(MATRIX)
# Steps of cuDNN's FP32 convolutions, which its kernels for tensor cores do not have.
TRANSFORMS = pl.col("label").str.contains("^fft2d_|gcgemm") | pl.col("demangled").str.contains(r"\bDSE::\w+_fft")
FP32_MATRIX = TRANSFORMS | (IN_MATRIX & (pl.col("precision") == "fp32") & ~TENSOR_CORE)
TF32_MATRIX = IN_MATRIX & (pl.col("precision") == "tf32")
LAYOUT_LEFT = (0.0, 0.0, 0.05)
# ResNet-50 and DenseNet in bfloat16 on an H200: 0.42 and 0.47 for PyTorch's own batch normalization, 0.85 and 0.87 for
# convolutions and products.
NATIVE_NORMALIZATION_LEFT, CONVOLUTION_LEFT = (0.38, 0.43, 0.5), (0.77, 0.86, 1.0)
CUDNN_NORMALIZATION_LEFT = (0.5, 0.8, 1.0)
VOLUMES = "(?i)convolveNd|conv3d|3dconv|ncdhw|ndhwc|OffsetsKernel3D"  # in names of convolutions of volumes
# Share of the forward convolutions that cuDNN runs by index: in two dimensions 2% (ResNet-50) and none (a diffusion
# U-Net), in a 3D U-Net half. There channels_last_3d made a step 1.12 times as long (H200, TF32).
MAX_INDEXED = 0.25
ALIGNMENT = r"align\d+"
MIN_CHANGES = 0.5  # layout changes for each convolution
PADDED_LEFT = (0.13, 0.16, 0.2)  # GPT-2 with a vocabulary of 50,257 on an H200: 0.155
FILL_BLOCK = 1024  # elements that a block of PyTorch's fill kernel sets
MIN_ROWS = 2_048  # rows of a loss from which FILL_BLOCK determines the number of columns
SMALL = 1.0  # blocks per SM
BATCHED_LEFT = (0.05, 0.12, 0.5)  # share left of products that each leave SMs idle and take a few µs, mostly latency
MIN_EQUAL, MAX_CYCLE = 4, 3  # rounds, and kernels of a round


def _layouts(kernels: KernelSequence) -> Members:
    # Without statistics of a batch, normalization is elementwise, and takes as long in either layout.
    of_batches = kernels.matches("batch_norm_(collect|reduce|backward|elemt)").any()
    return Members(
        {
            "layout": kernels.matches("nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw"),
            "convolution": kernels.in_families("convolution"),
            "forward": kernels.in_families("convolution") & kernels.matches("fprop"),
            "indexed": kernels.in_families("convolution") & kernels.matches("fprop.*indexed"),
            "product": kernels.in_families("gemm"),  # 1x1 convolutions, in a network that normalizes
            "native": kernels.matches("batch_norm") & of_batches,
            "cudnn": kernels.matches("bn_(fw|bw)"),
            "volume": kernels.in_families("convolution") & kernels.matches(VOLUMES),
        }
    )


def _decide_layouts(totals: Totals) -> SpeedupDecision | str:
    """Return what channels-last tensors leave of layout changes, convolutions and their normalization.

    Where few convolutions have their layout changed, the others do not gain. Those of volumes do not either.
    """
    changes = totals.count("layout")
    if not changes:
        return "no kernel changes the layout of images"
    if totals.count("volume") or totals.count("indexed") > MAX_INDEXED * totals.count("forward"):
        return "convolutions of volumes do not run faster in channels-last layout"
    left = {"layout": LAYOUT_LEFT}
    if changes >= MIN_CHANGES * totals.count("convolution"):
        left |= {
            "convolution": CONVOLUTION_LEFT,
            "native": NATIVE_NORMALIZATION_LEFT,
            "cudnn": CUDNN_NORMALIZATION_LEFT,
        }
        if totals.count("native", "cudnn"):
            left["product"] = CONVOLUTION_LEFT
    return SpeedupDecision(totals.detail("layout changes", "layout"), left)


def _odd_products(kernels: KernelSequence) -> Members:
    """Choose products of odd dimensions. A benchmark tries alignments where aligned kernels run on the same grid."""
    odd = kernels.matches(ODD_PRODUCT) & kernels.where(TENSOR_CORE)
    if odd.any():
        kinds = kernels.shapes.kinds.select(pl.col("demangled").str.replace_all(ALIGNMENT, ""))
        both = kinds.with_columns(blocks=kernels.shapes.blocks).select(pl.struct(pl.all()).rank("dense"))
        product = both.to_series().to_numpy()
        aligned = np.unique(product[kernels.shape[kernels.matches("align8(_|>|$)") & kernels.where(TENSOR_CORE)]])
        odd &= ~np.isin(product, aligned)[kernels.shape]
    return Members({"odd": odd})


def _decide_padding(totals: Totals) -> SpeedupDecision | str:
    """Return what padded dimensions leave of tensor-core products whose dimensions are not multiples of 8."""
    if not totals.count():
        return "no tensor-core product has dimensions that slow it"
    return SpeedupDecision(totals.detail("products with odd dimensions"), {"odd": PADDED_LEFT})


def head_products(kernels: KernelSequence) -> dict[str, Mask]:
    """Return the products of a language model's head, and the kernels whose blocks show the head's dimensions.

    The head's products are the last one before the softmax of the loss and the two after its backward pass.
    """
    backward = kernels.matches("LogSoftMaxBackward")
    forward, after_loss = np.flatnonzero(kernels.matches("LogSoftMaxForward")), np.flatnonzero(backward)
    products = np.flatnonzero(kernels.in_families("gemm"))
    chosen = np.zeros(len(kernels.ns), np.bool_)
    before, after = np.searchsorted(products, forward) - 1, np.searchsorted(products, after_loss)
    chosen[products[before[before >= 0]]] = True
    for place in (after, after + 1):
        chosen[products[place[place < len(products)]]] = True
    return {"head": chosen, "loss": backward, "fill": kernels.matches("FillFunctor")}


def has_unpadded_vocabulary(totals: Totals) -> bool:
    """Return whether the vocabulary of a language model is not a multiple of 8.

    Names of FP32 kernels do not show it, but shapes do: the softmax of the loss runs one block for each row, and its
    backward pass follows a fill of as many elements as rows times columns.
    """
    losses, fills = totals.blocks("loss"), totals.blocks("fill")
    rows = max(losses, key=losses.__getitem__, default=0)
    if rows < MIN_ROWS or not fills:
        return False
    off = max(fills) * FILL_BLOCK / rows % 8
    return min(off, 8 - off) > FILL_BLOCK / rows


def _small_products(kernels: KernelSequence) -> Members:
    """Choose equal small products that follow each other; a batched product leaves a fraction that depends on them.

    A backward pass has two products for each one of the forward pass, by turns; a split product has a sum after it.
    """
    few_blocks = kernels.shapes.blocks < SMALL * kernels.sms
    small = np.flatnonzero(
        (kernels.in_families("gemm") & few_blocks[kernels.shape]) | kernels.matches("splitKreduce_kernel")
    )
    shape, stream = kernels.shape[small], kernels.stream[small]
    rounds = np.zeros(len(small), np.int64)
    later = np.zeros(len(small), np.bool_)
    for cycle in range(MAX_CYCLE, 0, -1):  # the shortest cycle counts
        same = np.zeros(len(small), np.bool_)
        same[cycle:] = (small[cycle:] - small[:-cycle] == cycle) & (shape[cycle:] == shape[:-cycle])
        same[cycle:] &= stream[cycle:] == stream[:-cycle]
        first, last = runs(same)
        count = (last - first) // cycle + 1
        first, last, count = (each[count >= MIN_EQUAL] for each in (first, last, count))
        places = index_ranges(first - cycle, last - first + cycle)
        rounds[places], later[places] = np.repeat(count, last - first + cycle), same[places]
    equal = rounds >= MIN_EQUAL
    members = np.zeros((2, len(kernels.ns)), np.bool_)
    for member, chosen in zip(members, (equal & ~later, equal & later), strict=True):
        member[small[chosen]] = True
    left = np.maximum(np.array(BATCHED_LEFT)[:, None], 1 / rounds[equal])
    return Members({"first": members[0], "later": members[1]}, left)


def _decide_batch(totals: Totals) -> SpeedupDecision | str:
    """Return what one batched product leaves of many equal small products."""
    if not totals.count():
        return "no equal small matrix products follow each other"
    return SpeedupDecision(totals.detail("equal small products"))


CHANNELS_LAST = Speedup(
    "channels-last",
    ("layout", "convolution", "forward", "indexed", "product", "native", "cudnn", "volume"),
    _layouts,
    _decide_layouts,
    gone=("layout",),
    of_shapes=True,
)
PAD = Speedup("pad", ("odd",), _odd_products, _decide_padding, of_shapes=True)
BATCH = Speedup("batch", ("first", "later"), _small_products, _decide_batch, gone=("later",))


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
CONVERTED_NORMALIZATION_LEFT, ELEMENTWISE_LEFT = (1.25, 1.4, 1.48), (0.48, 0.5, 0.6)


FP32_GROUPS, VOCABULARY = ("fp32", "transposed", "head", "convolution"), ("loss", "fill")
BF16_GROUPS = (*FP32_GROUPS, "tensor", "attention", "normalization", "elementwise", "nchw", *VOCABULARY)


def _fp32_products(kernels: KernelSequence) -> Members:
    """Choose FP32 matrix kernels that do not use tensor cores, in groups by their names."""
    return Members(_fp32_groups(kernels, kernels.where(FP32_MATRIX)))


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
    fp32, tensor = kernels.where(FP32_MATRIX), kernels.where(TF32_MATRIX)
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
        left |= {"normalization": CONVERTED_NORMALIZATION_LEFT, "elementwise": ELEMENTWISE_LEFT}
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
    kinds = "matrix products and convolutions" if totals.count("convolution", *groups[1:]) else "matrix products"
    text = f"{totals.share(*groups)} of the kernel time is {kinds} in {precision}"
    if has_unpadded_vocabulary(totals) and totals.count("head"):
        text += f", {totals.share('head')} with a vocabulary that is not a multiple of 8, which gain less"
    return text


TF32 = Speedup("tf32", (*FP32_GROUPS, *VOCABULARY), _fp32_products, _decide_tf32)
FP16 = Speedup("fp16", (*FP32_GROUPS, *VOCABULARY), _products_on_old_gpu, _decide_fp16)
BF16 = Speedup("bf16", BF16_GROUPS, _products_below_bf16, _decide_bf16)
