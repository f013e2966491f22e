"""Matrix kernels of better shapes: channels last, dimensions that are multiples of 8, many small products at once."""

from __future__ import annotations

import numpy as np

from traceview.speedups.base import ODD_PRODUCT, Estimate, KernelSequence, Mask, Speedup, grouped

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


def channels_last(kernels: KernelSequence) -> Estimate | str:
    """Return what channels-last tensors leave of layout changes, convolutions and their normalization.

    Where few convolutions have their layout changed, the others do not gain.
    """
    layout = kernels.matches("nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw")
    changes = kernels.total_count("layout changes", layout)
    if not layout.any() and not changes:
        return "no kernel changes the layout of images"
    native, cudnn = kernels.matches("batch_norm"), kernels.matches("bn_(fw|bw)")
    convolution = kernels.in_families("convolution")
    groups = [(layout, LAYOUT_LEFT)]
    if changes >= MIN_CHANGES * kernels.total_count("convolutions", convolution):
        normalizes = kernels.total_count("normalizations", native | cudnn) > 0
        products = kernels.in_families("gemm") & normalizes  # 1x1 convolutions
        groups += [
            (convolution | products, CONVOLUTION_LEFT),
            (native, NORMALIZATION_LEFT),
            (cudnn, CUDNN_NORMALIZATION_LEFT),
        ]
    count, part = kernels.shown_part("layouts", layout)
    detail = f"{count:,} layout changes take {part} of the kernel time"
    return grouped(kernels, groups, detail, gone=layout)


def pad(kernels: KernelSequence) -> Estimate | str:
    """Return what padded dimensions leave of tensor-core products whose dimensions are not multiples of 8."""
    chosen = kernels.matches(ODD_PRODUCT) & kernels.where(lambda kind: kind.tensor_core is True)
    if not chosen.any():
        return "no tensor-core product has dimensions that slow it"
    count, part = kernels.shown_part("odd products", chosen)
    detail = f"{count:,} products with odd dimensions take {part} of the kernel time"
    return grouped(kernels, [(chosen, PADDED_LEFT)], detail)


def unpadded_vocabulary(kernels: KernelSequence) -> Mask:
    """Return the products of a language model's head whose vocabulary is not a multiple of 8.

    Names of FP32 kernels do not show it, but shapes do: the softmax of the loss runs one block for each row, and its
    backward pass follows a fill of as many elements as rows times columns. The head's products are the last one before
    that softmax and the two after its backward pass.
    """
    is_backward, is_fill = kernels.matches("LogSoftMaxBackward"), kernels.matches("FillFunctor")
    forward, backward = np.flatnonzero(kernels.matches("LogSoftMaxForward")), np.flatnonzero(is_backward)
    products = np.flatnonzero(kernels.in_families("gemm"))
    chosen = np.zeros(len(kernels.ns), np.bool_)
    backwards, every_fill = kernels.total_blocks("losses", is_backward), kernels.total_blocks("fills", is_fill)
    if not backwards or not every_fill:
        return chosen
    rows = max(backwards, key=backwards.__getitem__)
    columns = max(every_fill) * FILL_BLOCK / rows
    off = columns % 8
    if rows < MIN_ROWS or min(off, 8 - off) <= FILL_BLOCK / rows:
        return chosen
    before, after = np.searchsorted(products, forward) - 1, np.searchsorted(products, backward)
    chosen[products[before[before >= 0]]] = True
    for place in (after, after + 1):
        chosen[products[place[place < len(products)]]] = True
    return chosen


def batch(kernels: KernelSequence) -> Estimate | str:
    """Return what one batched product leaves of many equal small products."""
    few_blocks = kernels.blocks < SMALL * kernels.sms
    small = np.flatnonzero(kernels.in_families("gemm") & few_blocks[kernels.shape])
    shape, stream = kernels.shape[small], kernels.stream[small]
    same = (np.diff(small) == 1) & (shape[1:] == shape[:-1]) & (stream[1:] == stream[:-1])
    edges = np.concatenate([[0], np.flatnonzero(~same) + 1, [len(small)]])
    length = np.repeat(np.diff(edges), np.diff(edges))
    equal = length >= MIN_EQUAL
    if not equal.any():
        return "no equal small matrix products follow each other"
    rows = small[equal]
    low, middle, high = (np.maximum(factor, 1 / length[equal]) for factor in BATCHED_LEFT)
    count, part = kernels.shown_part("small products", rows)
    detail = f"{count:,} equal small products take {part} of the kernel time"
    return Estimate(rows, low, middle, high, np.concatenate([[False], same])[: len(small)][equal], detail)


CHANNELS_LAST = Speedup("channels-last", "Images in channels-last layout", "an image network in PyTorch", channels_last)
PAD = Speedup("pad", "Pad matrix dimensions to multiples of 8", "a vocabulary or width that may be padded", pad)
BATCH = Speedup("batch", "Batch equal small matrix products", "products that do not depend on each other", batch)
