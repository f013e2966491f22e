"""Fewer passes over memory, by kernels that move, convert or set data and by chains that become one kernel.

`traceview whatif` does not predict changes of kernels that move, convert or set data: a capture does not show which
tensors the program still needs. The fractions are estimates, so the ranges are wide.

Chains of elementwise kernels, attention by separate kernels and optimizers tensor by tensor can be fused. Their GPU
time is the time to read and write their tensors. A fused kernel reads and writes them once, so a fused chain takes
about as long as its longest kernel (GPT-2 under torch.compile on an H200: 1.18 times).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from traceview.intervals import Times
from traceview.model.units import share
from traceview.pricing.speedups.steps import (
    FUSIBLE,
    ODD_PRODUCT,
    Factors,
    KernelSequence,
    Mask,
    Members,
    Range,
    Speedup,
    SpeedupDecision,
    Totals,
    marked,
    per_run,
)

MIN_FILLS = 8  # fills in a row: gradients that are set to zero one by one
MIN_PART = 0.01  # share of the kernel time
FILL = r"FillFunctor<(float|c10::BFloat16|c10::Half|double)>"
EMBEDDING_GRADIENT = r"compute_grad_weight|krn_partial|sum_and_scatter|embedding_backward_feature"
# Softmax of a loss over classes. The fifth parameter of softmax_warp_* says whether the logarithm is taken.
LOSS = r"LogSoftMax|nll_loss|cross_entropy|softmax_warp_\w+<(?:[\w:]+, ){3}(?:\(int\))?\d+, (?:true|\(bool\)1)"
CHOOSES = "(?i)multinomial|top_?k|argm(?:ax|in)|sampl"  # tokens or experts, after another softmax than attention's
# Attention over a graph's edges applies one before its softmax.
ACTIVATION = "leaky_relu|threshold_kernel|clamp_min|[gG]elu|silu_kernel|elu_kernel"
ATTENTION_FAMILIES = ("softmax", "elementwise", "copy", "random")
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


def _move(name: str, pattern: str, what: str, left: Range) -> Speedup:
    """Return a change to the kernels whose names match a pattern."""
    decide = partial(_decide_share, what, left)
    return Speedup(
        name, ("moves",), lambda kernels: Members({"moves": kernels.matches(pattern)}), decide, of_shapes=True
    )


ZEROED = Speedup("zeroed-gradients", ("zeroed",), _zeroed_gradients, _decide_zeroed, gone=("zeroed",))
EMBEDDING = Speedup("embedding", ("gradient", "sort"), _embedding_gradients, _decide_embedding)
CASTS = _move("casts", CAST, "casts between precisions", CAST_LEFT)
CONCATENATE = _move("concatenate", CONCATENATION, "concatenations", CONCATENATION_LEFT)
STRIDED_COPY = _move("contiguous", STRIDED, "copies of strided tensors", STRIDED_LEFT)


CHAIN_LEFT = (1.05, 1.2, 1.35)  # times the longest kernel of a chain
COMPILED_ATTENTION = (1.0, 1.6, 2.3)  # twice as slow under torch.compile in a GPT-2 and a Llama (PyTorch 2.11)
CHAIN_FLOOR = (0.04, 0.07, 0.12)  # least share of the chain's sum: a long chain computes more than it copies
COMPILED = r"^triton_(poi|red|per|tem|for)_"  # kernels that torch.compile writes
MIN_CHAIN = 2
ATTENTION_LEFT = (0.0, 0.02, 0.12)  # share left of the kernels between the two products
# One attention kernel replaces two products, or in the backward pass four, and computes two of them again.
FORWARD_LEFT, BACKWARD_LEFT = (0.45, 0.58, 0.8), (0.75, 0.95, 1.2)
ODD_LEFT = (0.1, 0.16, 0.3)  # share left of products with odd lengths, which do not slow an attention kernel
# 7 instead of 20 to 23 passes over the parameters (Adam), 5 instead of 9 to 11 (SGD with momentum).
ADAM_LEFT, SGD_LEFT = (0.26, 0.31, 0.37), (0.4, 0.5, 0.65)
# Fused updates (Apex's and DeepSpeed's are `AdamFunctor`, `LAMBStage1Functor`), clipping, gradients set to zero.
NOT_UPDATES = r"Fused|_lamb|adam_kernel|LpNorm|NormFunctor|ZeroFunctor|\b(?:Adam|LAMB|SGD)\w*Functor"
UNSCALES = "non_finite_check"  # what a GradScaler does before an update; a fused update does it, too
MIN_UPDATES = 8  # updates of single tensors in a chain that make it an optimizer
MIN_PASSES = 2  # kinds of kernels; one pass over the parameters, as of SGD without momentum, is fused
UPDATE = r"addcdiv|lerp_scalar|addcmul"


def _chains(kernels: KernelSequence) -> Members:
    """Choose chains of memory-bound kernels, and kernels of attention: they become slower.

    In a compiled program these chains are what the compiler left.
    """
    compiled = kernels.matches(COMPILED)
    if compiled.any():
        return Members({"compiled": compiled}, np.ones((3, int(compiled.sum()))))
    first, last = kernels.runs(kernels.in_families(*FUSIBLE))
    long = last - first >= MIN_CHAIN
    first, last = first[long], last[long]
    begins, attention = np.zeros(len(kernels.ns), np.bool_), kernels.in_families("attention")
    begins[first] = True
    chained = marked(first, last, len(begins))
    left = _left_of_chains(kernels.ns, first, last, chained[chained | attention])
    return Members({"first": begins, "later": chained & ~begins, "attention": attention}, left)


def _left_of_chains(ns: Times, first: Times, last: Times, chained: Mask) -> Factors:
    """Return what is left of each kernel in a chain, and of each kernel of attention: where `chained` is false."""
    total, longest = (per_run(ns, first, last, combine) for combine in (np.add, np.maximum))
    left = np.empty((3, len(chained)))
    rows = slice(None) if chained.all() else chained
    for case, times, floor, slower in zip(left, CHAIN_LEFT, CHAIN_FLOOR, COMPILED_ATTENTION, strict=True):
        case[~chained] = slower
        case[rows] = np.repeat(np.clip(times * longest / np.maximum(total, 1), floor, 1.0), last - first)
    return left


def _decide_chains(totals: Totals) -> SpeedupDecision | str:
    if totals.count("compiled"):
        return "the program is compiled already"
    chains = totals.count("first")
    if not chains:
        return "no two memory-bound kernels follow each other"
    return SpeedupDecision(totals.detail(f"kernels in {chains:,} chains", "first", "later"))


def _attention(kernels: KernelSequence) -> Members:
    """Choose softmax, masks, dropout and copies around two matrix products, which a fused attention kernel replaces."""
    loss, fused = kernels.matches(LOSS), {"fused": kernels.in_families("attention")}
    softmax = kernels.in_families("softmax") & ~loss
    if not softmax.any():
        return Members(fused)
    product, count = kernels.in_families("gemm"), len(softmax)
    first, last = kernels.runs(~product)
    has_softmax, has_loss = (per_run(members, first, last, np.maximum) > 0 for members in (softmax, loss))
    # Attention multiplies once for each head and sample: at least one of the two products is batched, neither is split.
    # The grid of cuBLAS's kernels for Hopper does not show that. Then only kernels of attention lie between, and the
    # softmax, which passes over what the product writes, takes longer; that of a classifier takes little.
    batched = product & ~kernels.shapes.is_flat[kernels.shape]
    persistent = np.where(product & kernels.matches("^nvjet"), kernels.ns, np.iinfo(np.int64).max)
    foreign = per_run(~kernels.in_families(*ATTENTION_FAMILIES), first, last, np.maximum) > 0
    longest = per_run(np.where(softmax, kernels.ns, 0), first, last, np.maximum)
    shows = ~foreign & (longest > np.maximum(persistent[first - 1], persistent[last % count]))
    is_split = per_run(kernels.matches("(?i)split_?k"), first, last, np.maximum) > 0
    chooses = per_run(kernels.in_families("sort_scan") | kernels.matches(CHOOSES), first, last, np.maximum) > 0
    activates = per_run(kernels.matches(ACTIVATION), first, last, np.maximum) > 0
    chosen = (first > 0) & (last < count) & has_softmax & ~has_loss & ~is_split & ~chooses & ~activates
    chosen &= batched[first - 1] | batched[last % count] | shows
    first, last = first[chosen], last[chosen]
    if len(first) == 0:
        return Members(fused)
    backward = kernels.matches("[bB]ackward")[_softmax_in(softmax, first, last)]
    # The backward pass has two products on each side of the softmax.
    begin = first - 1 - (backward & (first > 1) & product[first - 2])
    end = last + 1 + (backward & (last + 1 < count) & product[(last + 1) % count])
    products = marked(begin, end, count) & product
    around = _runs_that_touch(kernels, kernels.in_families("copy"), begin - 1, end)
    layers = np.zeros(count, np.bool_)
    layers[first] = True
    return Members(
        {
            "product": products,
            "backward": products & marked(begin[backward], end[backward], count),
            "odd": products & kernels.matches(ODD_PRODUCT),
            "inner": (marked(first, last, count) | around) & ~products,
            "layer": layers,
            **fused,
        }
    )


def _decide_attention(totals: Totals) -> SpeedupDecision | str:
    layers = totals.count("layer")
    if not layers:
        return "no softmax runs between two matrix products"
    if totals.count("fused") >= layers:
        return "attention runs in fused kernels already; the softmax between products selects experts or tokens"
    taken = totals.share("inner", "product")
    detail = f"{layers:,} attention layers of several kernels each take {taken} of the kernel time"
    left = {"product": FORWARD_LEFT, "backward": BACKWARD_LEFT, "odd": ODD_LEFT, "inner": ATTENTION_LEFT}
    return SpeedupDecision(detail, left)


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


def _updates(kernels: KernelSequence) -> Members:
    """Choose the kernels of an optimizer: several tensors in each, or one."""
    single = _single_tensor_updates(kernels)
    several = kernels.in_families("optimizer") & ~kernels.matches(NOT_UPDATES)
    several = several if (single | several & ~kernels.matches(UNSCALES)).any() else single
    every = kernels.shapes.kinds["demangled"].gather(np.unique(kernels.shape[single | several]))
    if every.n_unique() < MIN_PASSES:
        single = several = np.zeros(len(single), np.bool_)
    adam = (single | several) & kernels.matches("addcdiv|PointwiseOp")
    return Members({"several": several, "single": single, "adam": adam})


def _decide_optimizer(totals: Totals) -> SpeedupDecision | str:
    """Return what a fused optimizer leaves of one that runs operation by operation."""
    if not totals.count():
        return "no optimizer runs operation by operation"
    left = ADAM_LEFT if totals.count("adam") else SGD_LEFT
    return SpeedupDecision(totals.detail("kernels of the optimizer"), {"several": left, "single": left})


def _single_tensor_updates(kernels: KernelSequence) -> Mask:
    """Return the elementwise kernels of chains with many updates of single tensors."""
    elementwise = kernels.in_families("elementwise")
    update = elementwise & kernels.matches(UPDATE)
    if not update.any():
        return update
    first, last = kernels.runs(elementwise)
    many = per_run(update, first, last, np.add) >= MIN_UPDATES
    return marked(first[many], last[many], len(update))


COMPILE = Speedup("compile", ("first", "later", "attention", "compiled"), _chains, _decide_chains, gone=("later",))
SDPA = Speedup(
    "sdpa", ("product", "backward", "odd", "inner", "layer", "fused"), _attention, _decide_attention, gone=("inner",)
)
FUSED_OPTIMIZER = Speedup(
    "fused-optimizer", ("several", "single", "adam"), _updates, _decide_optimizer, gone=("single",)
)
