"""Matrix kernels of better shapes: channels last, dimensions that are multiples of 8, many small products at once."""

from __future__ import annotations

import numpy as np

from traceview.speedups.base import Estimate, KernelSequence, Speedup, scaled, share_of

LAYOUT_LEFT = (0.0, 0.0, 0.1)
# ResNet-50 in bfloat16 on an H200: 0.42 for batch normalization, 0.84 for convolutions.
NORMALIZATION_LEFT, CONVOLUTION_LEFT = (0.35, 0.45, 0.8), (0.7, 0.85, 1.0)
PADDED_LEFT = (0.12, 0.2, 0.4)  # GPT-2 with a vocabulary of 50,257 on an H200: 0.15
SMALL = 1.0  # blocks per SM
BATCHED_LEFT = (0.05, 0.12, 0.5)  # of products that each leave SMs idle and take a few µs, most of it latency
MIN_EQUAL = 4


def channels_last(kernels: KernelSequence) -> Estimate | str:
    """Return what channels-last tensors leave of layout changes, convolutions and their normalization."""
    layout = kernels.matches("nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw")
    if not layout.any():
        return "no kernel changes the layout of images"
    normalization = kernels.matches("batch_norm|bn_(fw|bw)")
    convolution = kernels.in_families("convolution")
    groups = ((layout, LAYOUT_LEFT), (normalization, NORMALIZATION_LEFT), (convolution, CONVOLUTION_LEFT))
    low, middle, high = np.ones((3, len(layout)))
    for chosen, left in groups:
        low[chosen], middle[chosen], high[chosen] = left
    detail = f"{int(layout.sum()):,} layout changes take {share_of(kernels, layout)} of the kernel time"
    return Estimate(low, middle, high, layout, detail)


def pad(kernels: KernelSequence) -> Estimate | str:
    """Return what padded dimensions leave of tensor-core products whose dimensions are not multiples of 8."""
    chosen = kernels.matches("align[12](_|>|$)") & kernels.where(lambda kind: kind.tensor_core is True)
    if not chosen.any():
        return "no tensor-core product has dimensions that slow it"
    detail = f"{int(chosen.sum()):,} products with odd dimensions take {share_of(kernels, chosen)} of the kernel time"
    return scaled(kernels, chosen, PADDED_LEFT, detail)


def batch(kernels: KernelSequence) -> Estimate | str:
    """Return what one batched product leaves of many equal small products."""
    blocks = kernels.blocks[kernels.shape] / max(kernels.sms, 1)
    small = kernels.in_families("gemm") & (blocks < SMALL) & (kernels.sms > 0)
    same = (kernels.shape[1:] == kernels.shape[:-1]) & (kernels.stream[1:] == kernels.stream[:-1])
    change = np.flatnonzero(~same) + 1
    edges = np.concatenate([[0], change, [len(small)]])
    length = np.repeat(np.diff(edges), np.diff(edges))
    equal = small & (length >= MIN_EQUAL)
    if not equal.any():
        return "no equal small matrix products follow each other"
    low, middle, high = (np.where(equal, np.maximum(factor, 1 / length), 1.0) for factor in BATCHED_LEFT)
    gone = equal.copy()
    gone[edges[:-1][edges[:-1] < len(small)]] = False
    detail = f"{int(equal.sum()):,} equal small products take {share_of(kernels, equal)} of the kernel time"
    return Estimate(low, middle, high, gone, detail)


CHANNELS_LAST = Speedup("channels-last", "Images in channels-last layout", "an image network in PyTorch", channels_last)
PAD = Speedup("pad", "Pad matrix dimensions to multiples of 8", "a vocabulary or width that may be padded", pad)
BATCH = Speedup("batch", "Batch equal small matrix products", "products that do not depend on each other", batch)
