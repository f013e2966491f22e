"""Kernels that move, convert or set data: zeroed gradients, embedding gradients, casts, concatenations, strided copies.

`traceview whatif` does not predict these changes: a capture does not show which tensors the program still needs. The
fractions are estimates, so the ranges are wide.
"""

from __future__ import annotations

import numpy as np

from traceview.speedups.base import Estimate, KernelSequence, Mask, Range, Speedup, grouped, marked, per_run
from traceview.units import share

MIN_FILLS = 8  # fills in a row: gradients that are set to zero one by one
MIN_PART = 0.01  # share of the kernel time
FILL = r"FillFunctor<(float|c10::BFloat16|c10::Half|double)>"
EMBEDDING_GRADIENT = r"compute_grad_weight|krn_partial|sum_and_scatter|embedding_backward_feature"
CAST = r"bfloat16_copy|float16_copy|unrolled_elementwise_kernel<.*direct_copy"
CONCATENATION = r"CatArrayBatchedCopy"
STRIDED = r"::elementwise_kernel<.*direct_copy"
EMBEDDING_LEFT = (0.1, 0.4, 0.8)  # sparse gradients and fused updates still gather the rows
CAST_LEFT = (0.0, 0.2, 0.6)  # a compiler fuses casts into their neighbours; some activations are still converted
CONCATENATION_LEFT = (0.0, 0.2, 0.6)
STRIDED_LEFT = (0.0, 0.4, 0.8)


def zeroed_gradients(kernels: KernelSequence) -> Estimate | str:
    """Return what is left if gradients are dropped instead of set to zero: nothing."""
    fills, chosen = kernels.matches(FILL), kernels.matches("ZeroFunctor")
    if fills.any():
        first, last = kernels.runs(fills)
        long = last - first >= MIN_FILLS
        chosen = chosen | marked(first[long], last[long], len(fills))
    if not chosen.any():
        return "no gradients are set to zero"
    count, part = kernels.shown_part("zeroed", chosen)
    detail = f"{count:,} kernels that set gradients to zero take {part} of the time"
    return grouped(kernels, [(chosen, (0.0, 0.0, 0.0))], detail, gone=chosen)


def embedding_gradients(kernels: KernelSequence) -> Estimate | str:
    """Return what is left of dense gradients of embeddings, which sort the indices and add up equal ones."""
    gradient = kernels.matches(EMBEDDING_GRADIENT)
    if not kernels.total_count("embedding", gradient):
        return "no dense gradient of an embedding is computed"
    first, last = kernels.runs(gradient | kernels.in_families("sort_scan", "indexing", "copy", "reduction"))
    sorts = per_run(gradient, first, last, np.maximum) > 0
    sorted_runs = marked(first[sorts], last[sorts], len(gradient))
    chosen = gradient | (sorted_runs & kernels.in_families("sort_scan"))
    return _share_left(kernels, chosen, EMBEDDING_LEFT, "kernels for dense gradients of embeddings")


def casts(kernels: KernelSequence) -> Estimate | str:
    """Return what is left of conversions between precisions."""
    return _share_left(kernels, kernels.matches(CAST), CAST_LEFT, "casts between precisions")


def concatenations(kernels: KernelSequence) -> Estimate | str:
    """Return what is left of concatenations if the parts are written in place."""
    return _share_left(kernels, kernels.matches(CONCATENATION), CONCATENATION_LEFT, "concatenations")


def strided_copies(kernels: KernelSequence) -> Estimate | str:
    """Return what is left of copies that only change the order of elements."""
    return _share_left(kernels, kernels.matches(STRIDED), STRIDED_LEFT, "copies of strided tensors")


def _share_left(kernels: KernelSequence, chosen: Mask, left: Range, what: str) -> Estimate | str:
    """Return an estimate for the chosen kernels, or a reason if they take less than MIN_PART of the kernel time."""
    if kernels.total_ns(what, chosen) <= MIN_PART * kernels.total_ns():
        return f"{what} take less than {share(MIN_PART)} of the kernel time"
    count, part = kernels.shown_part(what, chosen)
    detail = f"{count:,} {what} take {part} of the kernel time"
    return grouped(kernels, [(chosen, left)], detail)


ZEROED = Speedup(
    "zeroed-gradients", "Gradients dropped, not zeroed", "gradients that are written next", zeroed_gradients
)
EMBEDDING = Speedup("embedding", "Embedding gradients without a sort", "a sparse or fused update", embedding_gradients)
CASTS = Speedup("casts", "Fewer casts", "tensors that keep one precision", casts)
CONCATENATE = Speedup("concatenate", "Parts written in place", "a result that is allocated once", concatenations)
STRIDED_COPY = Speedup("contiguous", "Fewer strided copies", "kernels that accept strides", strided_copies)
