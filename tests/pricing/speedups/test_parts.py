"""A sequence of kernels in parts gives the same decisions, savings and fractions as the whole sequence."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pricing.speedups.test_memory import CAST, CAT, GRADIENT, SORT, STRIDED, UPCAST
from tests.pricing.speedups.test_speedups import (
    ADD,
    ADDCDIV,
    BF16_GEMM,
    COPY,
    FILL,
    FLASH,
    FP32_CONVOLUTION,
    FP32_GEMM,
    LAYOUT,
    LOSS,
    LOSS_BACKWARD,
    ODD,
    SOFTMAX,
    SOFTMAX_BACKWARD,
    sequence,
)
from traceview.model.sums import merged_sums
from traceview.pricing.speedups import FINDABLE, SPEEDUPS, KernelSequence, Speedup
from traceview.pricing.speedups.steps import Candidates, SpeedupDecision

TRANSPOSED, TF32_GEMM = "ampere_sgemm_128x64_nt", "ampere_tf32_s1688gemm_tf32_128x128_nn"
NORMALIZATION = "void at::native::batch_norm_collect_statistics_kernel<float>(T1)"
ADAM = "void at::native::multi_tensor_apply_kernel<PointwiseOpScalarListFunctor<float>>(T1)"
MOTIFS = (
    [FP32_GEMM, TRANSPOSED, TF32_GEMM, ODD],
    [FP32_GEMM, LOSS, FILL, LOSS_BACKWARD, FP32_GEMM, TRANSPOSED],
    [COPY, BF16_GEMM, ADD, SOFTMAX, BF16_GEMM, COPY],
    [FP32_GEMM, FP32_GEMM, SOFTMAX_BACKWARD, COPY, FP32_GEMM, ODD],
    [ADD, ADDCDIV] * 9,
    [ADAM, ADD],
    [FILL] * 9,
    [SORT, COPY, GRADIENT],
    [CAST, UPCAST, CAT, STRIDED],
    [LAYOUT, FP32_CONVOLUTION, NORMALIZATION],
    [BF16_GEMM] * 6,
    [FLASH],
)
NEIGHBOURS = 60  # more than the longest pattern of these motifs
ALL = tuple(dict.fromkeys((*SPEEDUPS, *FINDABLE)))


@st.composite
def sequences(draw: st.DrawFn) -> KernelSequence:
    """Return motifs on two streams, with a product after every other one, so that patterns are short."""
    names, streams = list[str](), list[int]()
    for number, motif in enumerate(draw(st.lists(st.sampled_from(MOTIFS), max_size=30))):
        names += [*motif, FP32_GEMM] if number % 2 else motif
        streams += [draw(st.integers(0, 1))] * (len(names) - len(streams))
    seed, columns = draw(st.integers(0, 99)), draw(st.sampled_from([50_257, 50_304]))
    ns = np.random.default_rng(seed).choice([0, 900, 3_001, 47_111, 1_234_567], len(names)).tolist()
    kernels = sequence(names, ns, streams, gpu=draw(st.sampled_from(["NVIDIA H200", "Tesla T4", "unknown"])))
    blocks = {FILL: -(-8192 * columns // 1024), LOSS_BACKWARD: 8192, BF16_GEMM: draw(st.sampled_from([4, 900]))}
    return kernels._replace(blocks=np.array([float(blocks.get(name, 200)) for name in kernels.full_names]))


def in_parts(kernels: KernelSequence, cuts: list[int], speedup: Speedup) -> list[tuple[int, Candidates]]:
    """Cut at percents; return the candidates of each part, with the first kernel that the part sees."""
    edges, parts = [0, *sorted(cut * len(kernels.ns) // 100 for cut in cuts), len(kernels.ns)], []
    for first, last in pairwise(edges):
        begin = max(first - NEIGHBOURS, 0)
        nearby = kernels.inside(slice(begin, last + NEIGHBOURS))
        parts.append((begin, speedup.candidates(nearby, slice(first - begin, last - begin))))
    return parts


@pytest.mark.parametrize("speedup", ALL, ids=lambda speedup: speedup.name)
@given(kernels=sequences(), cuts=st.lists(st.integers(0, 100), min_size=1, max_size=6))
def test_parts_decide_like_the_whole(speedup: Speedup, kernels: KernelSequence, cuts: list[int]) -> None:
    (_, whole), parts = in_parts(kernels, [], speedup)[0], in_parts(kernels, cuts, speedup)
    sums, merged = speedup.sums(whole), merged_sums([speedup.sums(part) for _, part in parts])
    kernel_ns = int(kernels.ns.sum())
    decision = speedup.decision(sums, kernel_ns, kernels.gpu)
    assert speedup.decision(merged, kernel_ns, kernels.gpu) == decision
    if isinstance(decision, SpeedupDecision):
        assert speedup.savings(decision, merged) == speedup.savings(decision, sums)
        assert speedup.ranges(decision, sorted(merged.numbers)) == speedup.ranges(decision, sorted(sums.numbers))
    rows = [part.rows + begin for begin, part in parts]
    assert np.concatenate(rows).tolist() == whole.rows.tolist()
    assert np.concatenate([part.labels for _, part in parts]).tolist() == whole.labels.tolist()
    if whole.left is not None:
        lefts = [part.left for _, part in parts if part.left is not None]
        assert np.concatenate(lefts, axis=1).tolist() == whole.left.tolist()


@pytest.mark.parametrize("speedup", ALL, ids=lambda speedup: speedup.name)
@given(kernels=sequences())
def test_savings_are_those_of_the_fractions(speedup: Speedup, kernels: KernelSequence) -> None:
    candidates, estimate = speedup.candidates(kernels), speedup.estimate(kernels)
    if isinstance(estimate, str):
        return
    sums = speedup.sums(candidates)
    decision = speedup.decision(sums, int(kernels.ns.sum()), kernels.gpu)
    assert isinstance(decision, SpeedupDecision)
    ns = kernels.ns[estimate.rows]
    most, expected, least = (int(np.rint(ns * (1 - left)).sum()) for left in estimate.factors)
    gains = estimate.middle < 1
    gross = int(np.rint(ns[gains] * (1 - estimate.middle[gains])).sum())
    assert speedup.savings(decision, sums) == (least, expected, most, gross)


def test_motifs_reach_every_decision() -> None:
    names = [name for motif in MOTIFS for name in (*motif, FP32_GEMM)]
    reached = {speedup.name for speedup in ALL if not isinstance(speedup.estimate(sequence(names)), str)}
    assert reached == {speedup.name for speedup in ALL} - {"fp16"}
