"""Matrix kernels of better shapes: channels last, dimensions that are multiples of 8, many small products at once."""

from __future__ import annotations

import numpy as np

from traceview.speedups.base import ODD_PRODUCT, KernelSequence, Mask
from traceview.speedups.steps import Members, Speedup, SpeedupDecision, Totals

LAYOUT_LEFT = (0.0, 0.0, 0.05)
# ResNet-50 and DenseNet in bfloat16 on an H200: 0.42 and 0.47 for PyTorch's own batch normalization, 0.85 and 0.87 for
# convolutions and products.
NORMALIZATION_LEFT, CONVOLUTION_LEFT = (0.38, 0.43, 0.5), (0.77, 0.86, 1.0)
CUDNN_NORMALIZATION_LEFT = (0.5, 0.8, 1.0)
MIN_CHANGES = 0.5  # layout changes for each convolution
PADDED_LEFT = (0.13, 0.16, 0.2)  # GPT-2 with a vocabulary of 50,257 on an H200: 0.155
FILL_BLOCK = 1024  # elements that a block of PyTorch's fill kernel sets
MIN_ROWS = 2_048  # rows of a loss from which FILL_BLOCK determines the number of columns
SMALL = 1.0  # blocks per SM
BATCHED_LEFT = (0.05, 0.12, 0.5)  # share left of products that each leave SMs idle and take a few µs, mostly latency
MIN_EQUAL = 4


def _layouts(kernels: KernelSequence) -> Members:
    return Members(
        {
            "layout": kernels.matches("nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw"),
            "convolution": kernels.in_families("convolution"),
            "product": kernels.in_families("gemm"),  # 1x1 convolutions, in a network that normalizes
            "native": kernels.matches("batch_norm"),
            "cudnn": kernels.matches("bn_(fw|bw)"),
        }
    )


def _decide_layouts(totals: Totals) -> SpeedupDecision | str:
    """Return what channels-last tensors leave of layout changes, convolutions and their normalization.

    Where few convolutions have their layout changed, the others do not gain.
    """
    changes = totals.count("layout")
    if not changes:
        return "no kernel changes the layout of images"
    left = {"layout": LAYOUT_LEFT}
    if changes >= MIN_CHANGES * totals.count("convolution"):
        left |= {"convolution": CONVOLUTION_LEFT, "native": NORMALIZATION_LEFT, "cudnn": CUDNN_NORMALIZATION_LEFT}
        if totals.count("native", "cudnn"):
            left["product"] = CONVOLUTION_LEFT
    return SpeedupDecision(totals.detail("layout changes", "layout"), left)


def _odd_products(kernels: KernelSequence) -> Members:
    return Members({"odd": kernels.matches(ODD_PRODUCT) & kernels.where(lambda kind: kind.tensor_core is True)})


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
    """Choose equal small products that follow each other; a batched product leaves a fraction that depends on them."""
    few_blocks = kernels.blocks < SMALL * kernels.sms
    small = np.flatnonzero(kernels.in_families("gemm") & few_blocks[kernels.shape])
    shape, stream = kernels.shape[small], kernels.stream[small]
    same = (np.diff(small) == 1) & (shape[1:] == shape[:-1]) & (stream[1:] == stream[:-1])
    edges = np.concatenate([[0], np.flatnonzero(~same) + 1, [len(small)]])
    length = np.repeat(np.diff(edges), np.diff(edges))
    equal = length >= MIN_EQUAL
    first, later = np.zeros((2, len(kernels.ns)), np.bool_)
    later[small[equal]] = np.concatenate([[False], same])[: len(small)][equal]
    first[small[equal]] = ~later[small[equal]]
    left = np.maximum(np.array(BATCHED_LEFT)[:, None], 1 / length[equal])
    return Members({"first": first, "later": later}, left)


def _decide_batch(totals: Totals) -> SpeedupDecision | str:
    """Return what one batched product leaves of many equal small products."""
    if not totals.count():
        return "no equal small matrix products follow each other"
    return SpeedupDecision(totals.detail("equal small products"))


CHANNELS_LAST = Speedup(
    "channels-last",
    "Images in channels-last layout",
    "an image network in PyTorch",
    ("layout", "convolution", "product", "native", "cudnn"),
    _layouts,
    _decide_layouts,
    gone=("layout",),
)
PAD = Speedup(
    "pad",
    "Pad matrix dimensions to multiples of 8",
    "a vocabulary or width that may be padded",
    ("odd",),
    _odd_products,
    _decide_padding,
)
BATCH = Speedup(
    "batch",
    "Batch equal small matrix products",
    "products that do not depend on each other",
    ("first", "later"),
    _small_products,
    _decide_batch,
    gone=("later",),
)
