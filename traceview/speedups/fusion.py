"""Fewer passes over memory: chains of elementwise kernels, attention by separate kernels, optimizers tensor by tensor.

The GPU time of such kernels is the time to read and write their tensors. A fused kernel reads and writes them once, so
a fused chain takes about as long as its longest kernel (GPT-2 under torch.compile on an H200: 1.18 times).
"""

from __future__ import annotations

import numpy as np

from traceview.speedups.base import FUSIBLE, Estimate, KernelSequence, Mask, Speedup, scaled

CHAIN_LEFT = (1.0, 1.2, 1.5)  # times the longest kernel of a chain
CHAIN_FLOOR = (0.04, 0.07, 0.12)  # of the chain's sum: a long chain computes more than it copies
MIN_CHAIN = 2
ATTENTION_LEFT = (0.0, 0.02, 0.12)  # of the kernels between the two products
PRODUCTS_LEFT = (0.4, 0.7, 1.0)  # of the two products: one attention kernel replaces them
OPTIMIZER_LEFT = (0.22, 0.3, 0.42)  # 7 instead of about 23 passes over the parameters (AdamW)
MIN_UPDATES = 8  # updates of single tensors in a chain that make it an optimizer
UPDATE = r"addcdiv|lerp_scalar|addcmul"


def compile_chains(kernels: KernelSequence) -> Estimate | str:
    """Return what fusing chains of memory-bound kernels leaves."""
    fusible = kernels.in_families(*FUSIBLE)
    first, last = kernels.runs(fusible)
    long = last - first >= MIN_CHAIN
    if not long.any():
        return "no two memory-bound kernels follow each other"
    first, last = first[long], last[long]
    edges = np.stack([first, last], axis=1).ravel()
    ns = np.append(kernels.ns, 0)
    total, longest = np.add.reduceat(ns, edges)[::2], np.maximum.reduceat(ns, edges)[::2]
    starts = np.zeros(len(fusible) + 1, np.int64)
    starts[first], in_chain = 1, np.zeros(len(fusible) + 1, np.int64)
    in_chain[first] += 1
    in_chain[last] -= 1
    members, chain = np.cumsum(in_chain)[:-1] > 0, np.cumsum(starts)[:-1] - 1
    low, middle, high = (
        np.where(members, np.clip(times * longest / np.maximum(total, 1), floor, 1.0)[chain], 1.0)
        for times, floor in zip(CHAIN_LEFT, CHAIN_FLOOR, strict=True)
    )
    gone = members.copy()
    gone[first] = False
    part = total.sum() / max(int(kernels.ns.sum()), 1)
    detail = f"{int(members.sum()):,} kernels in {len(first):,} chains take {part:.0%} of the kernel time"
    return Estimate(low, middle, high, gone, detail)


def sdpa(kernels: KernelSequence) -> Estimate | str:
    """Return what a fused attention kernel leaves of softmax, masks, dropout and copies around two matrix products."""
    softmax = kernels.in_families("softmax") & ~kernels.matches("LogSoftMax|nll_loss|cross_entropy")
    product, copies = kernels.in_families("gemm"), kernels.in_families("copy")
    first, last = kernels.runs(~product)
    between = (first > 0) & (last < len(product))
    first, last = first[between], last[between]
    edges = np.stack([first, last], axis=1).ravel()
    has_softmax = np.logical_or.reduceat(np.append(softmax, False), edges)[::2] if len(edges) else first > 0
    inner, products = np.zeros(len(product), np.bool_), np.zeros(len(product), np.bool_)
    for begin, end in zip(first[has_softmax].tolist(), last[has_softmax].tolist(), strict=True):
        before, after = begin - 1, end + 1
        products[[begin - 1, end]] = True
        while before > 0 and copies[before - 1]:
            before -= 1
        while after < len(copies) and copies[after]:
            after += 1
        inner[before:after] = True
    inner &= ~products
    if not inner.any():
        return "no softmax runs between two matrix products"
    low, middle, high = (
        np.where(inner, within, np.where(products, around, 1.0))
        for within, around in zip(ATTENTION_LEFT, PRODUCTS_LEFT, strict=True)
    )
    part = kernels.ns[inner | products].sum() / max(int(kernels.ns.sum()), 1)
    detail = f"{int(has_softmax.sum()):,} attentions by separate kernels take {part:.0%} of the kernel time"
    return Estimate(low, middle, high, inner, detail)


def fused_optimizer(kernels: KernelSequence) -> Estimate | str:
    """Return what a fused optimizer leaves of one that runs operation by operation."""
    many = kernels.in_families("optimizer") & ~kernels.matches("Fused|_lamb|adam_kernel")
    single = _single_tensor_updates(kernels)
    if not (many | single).any():
        return "no optimizer runs operation by operation"
    estimate = scaled(kernels, many | single, OPTIMIZER_LEFT, "")
    part = kernels.ns[many | single].sum() / max(int(kernels.ns.sum()), 1)
    detail = f"{int((many | single).sum()):,} kernels of the optimizer take {part:.0%} of the kernel time"
    return Estimate(estimate.low, estimate.middle, estimate.high, single, detail)


def _single_tensor_updates(kernels: KernelSequence) -> Mask:
    """Return the elementwise kernels of chains with many updates of single tensors."""
    update, chain = kernels.matches(UPDATE) & kernels.in_families("elementwise"), kernels.in_families("elementwise")
    first, last = kernels.runs(chain)
    members = np.zeros(len(chain), np.bool_)
    if len(first):
        count = np.add.reduceat(np.append(update, False).astype(np.int64), np.stack([first, last], 1).ravel())[::2]
        for begin, end in zip(first[count >= MIN_UPDATES].tolist(), last[count >= MIN_UPDATES].tolist(), strict=True):
            members[begin:end] = True
    return members


COMPILE = Speedup(
    "compile", "Fuse chains of elementwise kernels (torch.compile)", "shapes that seldom change", compile_chains
)
SDPA = Speedup("sdpa", "Attention as one kernel", "a supported head size, and no use of the attention weights", sdpa)
FUSED_OPTIMIZER = Speedup("fused-optimizer", "A fused optimizer", "the same update up to rounding", fused_optimizer)
