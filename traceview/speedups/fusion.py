"""Fewer passes over memory: chains of elementwise kernels, attention by separate kernels, optimizers tensor by tensor.

The GPU time of such kernels is the time to read and write their tensors. A fused kernel reads and writes them once, so
a fused chain takes about as long as its longest kernel (GPT-2 under torch.compile on an H200: 1.18 times).
"""

from __future__ import annotations

import numpy as np

from traceview.intervals import Times, index_ranges
from traceview.speedups.base import (
    FUSIBLE,
    ODD_PRODUCT,
    Estimate,
    KernelSequence,
    Mask,
    Speedup,
    grouped,
    marked,
    per_run,
)

CHAIN_LEFT = (1.05, 1.2, 1.35)  # times the longest kernel of a chain
COMPILED_ATTENTION = (1.0, 1.6, 2.3)  # twice as slow under torch.compile in a GPT-2 and a Llama (PyTorch 2.11)
CHAIN_FLOOR = (0.04, 0.07, 0.12)  # least share of the chain's sum: a long chain computes more than it copies
MIN_CHAIN = 2
ATTENTION_LEFT = (0.0, 0.02, 0.12)  # share left of the kernels between the two products
# One attention kernel replaces two products, or in the backward pass four, and computes two of them again.
FORWARD_LEFT, BACKWARD_LEFT = (0.45, 0.58, 0.8), (0.75, 0.95, 1.2)
ODD_LEFT = (0.1, 0.16, 0.3)  # share left of products with odd lengths, which do not slow an attention kernel
# 7 instead of 20 to 23 passes over the parameters (Adam), 5 instead of 9 to 11 (SGD with momentum).
ADAM_LEFT, SGD_LEFT = (0.26, 0.31, 0.37), (0.4, 0.5, 0.65)
NOT_UPDATES = "Fused|_lamb|adam_kernel|LpNorm|ZeroFunctor"  # fused updates, clipping, gradients set to zero
MIN_UPDATES = 8  # updates of single tensors in a chain that make it an optimizer
UPDATE = r"addcdiv|lerp_scalar|addcmul"


def compile_chains(kernels: KernelSequence) -> Estimate | str:
    """Return what fusing chains of memory-bound kernels leaves."""
    first, last = kernels.runs(kernels.in_families(*FUSIBLE))
    long = last - first >= MIN_CHAIN
    if not long.any():
        return "no two memory-bound kernels follow each other"
    first, last = first[long], last[long]
    total, longest = (per_run(kernels.ns, first, last, combine) for combine in (np.add, np.maximum))
    length = last - first
    count, part = kernels.shown_part("chained", index_ranges(first, length))
    chains, _ = kernels.shown_part("chains", first)
    detail = f"{count:,} kernels in {chains:,} chains take {part} of the kernel time"
    left = [
        np.clip(times * longest / np.maximum(total, 1), floor, 1.0)
        for times, floor in zip(CHAIN_LEFT, CHAIN_FLOOR, strict=True)
    ]
    # Kernels of attention become slower: each is a chain by itself.
    attention = np.flatnonzero(kernels.in_families("attention"))
    first, length = np.append(first, attention), np.append(length, np.ones(len(attention), np.int64))
    order = np.argsort(first)
    first, length = first[order], length[order]
    low, middle, high = (
        np.repeat(np.append(chains, np.full(len(attention), slower))[order], length)
        for chains, slower in zip(left, COMPILED_ATTENTION, strict=True)
    )
    gone = np.ones(int(length.sum()), np.bool_)
    gone[np.cumsum(length) - length] = False
    return Estimate(index_ranges(first, length), low, middle, high, gone, detail)


def sdpa(kernels: KernelSequence) -> Estimate | str:
    """Return what a fused attention kernel leaves of softmax, masks, dropout and copies around two matrix products."""
    softmax = kernels.in_families("softmax") & ~kernels.matches("LogSoftMax|nll_loss|cross_entropy")
    if not softmax.any():
        return "no softmax runs between two matrix products"
    product, count = kernels.in_families("gemm"), len(softmax)
    first, last = kernels.runs(~product)
    chosen = (first > 0) & (last < count) & (per_run(softmax, first, last, np.maximum) > 0)
    first, last = first[chosen], last[chosen]
    if len(first) == 0:
        return "no softmax runs between two matrix products"
    backward = kernels.matches("[bB]ackward")[_softmax_in(softmax, first, last)]
    # The backward pass has two products on each side of the softmax.
    begin, end = first - 1 - (backward & product[first - 2]), last + 1 + (backward & product[(last + 1) % count])
    products = marked(begin, end, count) & product
    around = _runs_that_touch(kernels, kernels.in_families("copy"), begin - 1, end)
    inner = (marked(first, last, count) | around) & ~products
    groups = (
        (products, FORWARD_LEFT),
        (products & marked(begin[backward], end[backward], count), BACKWARD_LEFT),
        (products & kernels.matches(ODD_PRODUCT), ODD_LEFT),
        (inner, ATTENTION_LEFT),
    )
    (layers, _), (_, part) = kernels.shown_part("layers", first), kernels.shown_part("attention", inner | products)
    detail = f"{layers:,} attention layers of several kernels each take {part} of the kernel time"
    return grouped(kernels, groups, detail, gone=inner)


def _softmax_in(softmax: Mask, first: Times, last: Times) -> Times:
    """Return the last softmax in each of the runs [first, last) that hold one."""
    places = np.flatnonzero(softmax)
    inside: Times = places[np.searchsorted(places, last) - 1]
    return inside


def _runs_that_touch(kernels: KernelSequence, members: Mask, *places: Times) -> Mask:
    """Return the members in runs that contain one of the places."""
    first, last = kernels.runs(members)
    touched = np.zeros(len(first), np.bool_)
    for some in places:
        run = np.searchsorted(first, some, side="right") - 1
        inside = (run >= 0) & (some < last[np.maximum(run, 0)]) if len(first) else np.zeros(len(some), np.bool_)
        touched[run[inside]] = True
    return marked(first[touched], last[touched], len(members))


def fused_optimizer(kernels: KernelSequence) -> Estimate | str:
    """Return what a fused optimizer leaves of one that runs operation by operation."""
    single = _single_tensor_updates(kernels)
    chosen = single | (kernels.in_families("optimizer") & ~kernels.matches(NOT_UPDATES))
    is_adam = kernels.total_count("adam", chosen & kernels.matches("addcdiv|PointwiseOp")) > 0
    if not chosen.any():
        return "no optimizer runs operation by operation"
    count, part = kernels.shown_part("optimizer", chosen)
    detail = f"{count:,} kernels of the optimizer take {part} of the kernel time"
    return grouped(kernels, [(chosen, ADAM_LEFT if is_adam else SGD_LEFT)], detail, gone=single)


def _single_tensor_updates(kernels: KernelSequence) -> Mask:
    """Return the elementwise kernels of chains with many updates of single tensors."""
    elementwise = kernels.in_families("elementwise")
    update = elementwise & kernels.matches(UPDATE)
    if not update.any():
        return update
    first, last = kernels.runs(elementwise)
    many = per_run(update, first, last, np.add) >= MIN_UPDATES
    return marked(first[many], last[many], len(update))


COMPILE = Speedup(
    "compile", "Fuse chains of elementwise kernels (torch.compile)", "shapes that seldom change", compile_chains
)
SDPA = Speedup("sdpa", "Attention as one kernel", "a supported head size, and no use of the attention weights", sdpa)
FUSED_OPTIMIZER = Speedup("fused-optimizer", "A fused optimizer", "the same update up to rounding", fused_optimizer)
