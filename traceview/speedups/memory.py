"""Kernels that move, convert or set data: zeroed gradients, embedding gradients, casts, concatenations, strided copies.

`traceview whatif` does not predict these changes: a capture does not show which tensors the program still needs. The
fractions are estimates, so the ranges are wide.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from traceview.speedups.base import KernelSequence, marked, per_run
from traceview.speedups.steps import Members, Range, Speedup, SpeedupDecision, Totals
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


def _zeroed_gradients(kernels: KernelSequence) -> Members:
    fills, chosen = kernels.matches(FILL), kernels.matches("ZeroFunctor")
    if fills.any():
        first, last = kernels.runs(fills)
        long = last - first >= MIN_FILLS
        chosen = chosen | marked(first[long], last[long], len(fills))
    return Members({"zeroed": chosen})


def _decide_zeroed(totals: Totals) -> SpeedupDecision | str:
    """Return what is left if gradients are dropped instead of set to zero: nothing."""
    count = totals.count()
    if not count:
        return "no gradients are set to zero"
    detail = f"{count:,} kernels that set gradients to zero take {totals.share()} of the time"
    return SpeedupDecision(detail, {"zeroed": (0.0, 0.0, 0.0)})


def _embedding_gradients(kernels: KernelSequence) -> Members:
    """Choose dense gradients of embeddings, with the kernels that sort their indices."""
    gradient, sort = kernels.matches(EMBEDDING_GRADIENT), kernels.in_families("sort_scan")
    if not gradient.any():
        return Members({})
    first, last = kernels.runs(gradient | sort | kernels.in_families("indexing", "copy", "reduction"))
    sorts = per_run(gradient, first, last, np.maximum) > 0
    return Members({"gradient": gradient, "sort": marked(first[sorts], last[sorts], len(gradient)) & sort})


def _decide_embedding(totals: Totals) -> SpeedupDecision | str:
    if not totals.count("gradient"):
        return "no dense gradient of an embedding is computed"
    return _decide_share("kernels for dense gradients of embeddings", EMBEDDING_LEFT, totals)


def _decide_share(what: str, left: Range, totals: Totals) -> SpeedupDecision | str:
    """Return what is left of all groups, or a reason if they take less than MIN_PART of the kernel time."""
    if totals.ns() <= MIN_PART * totals.kernel_ns:
        return f"{what} take less than {share(MIN_PART)} of the kernel time"
    return SpeedupDecision(totals.detail(what), dict.fromkeys(totals.groups, left))


def _move(name: str, title: str, rests_on: str, pattern: str, what: str, left: Range) -> Speedup:
    """Return a change to the kernels whose names match a pattern."""
    decide = partial(_decide_share, what, left)
    return Speedup(
        name, title, rests_on, ("moves",), lambda kernels: Members({"moves": kernels.matches(pattern)}), decide
    )


ZEROED = Speedup(
    "zeroed-gradients",
    "Gradients dropped, not zeroed",
    "gradients that are written next",
    ("zeroed",),
    _zeroed_gradients,
    _decide_zeroed,
    gone=("zeroed",),
)
EMBEDDING = Speedup(
    "embedding",
    "Embedding gradients without a sort",
    "a sparse or fused update",
    ("gradient", "sort"),
    _embedding_gradients,
    _decide_embedding,
)
CASTS = _move("casts", "Fewer casts", "tensors that keep one precision", CAST, "casts between precisions", CAST_LEFT)
CONCATENATE = _move(
    "concatenate",
    "Parts written in place",
    "a result that is allocated once",
    CONCATENATION,
    "concatenations",
    CONCATENATION_LEFT,
)
STRIDED_COPY = _move(
    "contiguous",
    "Fewer strided copies",
    "kernels that accept strides",
    STRIDED,
    "copies of strided tensors",
    STRIDED_LEFT,
)
