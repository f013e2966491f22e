"""What changes to the compute leave, on hand-made sequences of kernels with names of real ones."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.pricing.speedups.dense import dense
from traceview.measure.kernels.families import shape_kinds
from traceview.pricing.speedups import SPEEDUPS, KernelSequence
from traceview.pricing.speedups.matrices import BATCH, BF16, CHANNELS_LAST, PAD, TF32
from traceview.pricing.speedups.memory import CHAIN_LEFT, COMPILE, FUSED_OPTIMIZER, SDPA
from traceview.pricing.speedups.steps import Estimate, LaunchShapes, marked, per_run

FP32_GEMM = "ampere_sgemm_128x64_nn"
FP32_CONVOLUTION = "void wgrad_alg0_engine<float, (int)128, (int)6, (int)7>(int, int, int, const T1 *)"
BF16_GEMM = "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT"
ADD = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>, A>(int)"
ADDCDIV = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::addcdiv_cuda_kernel(at::I &)>(int)"
SOFTMAX = "void at::native::<unnamed>::softmax_warp_forward<float, float, float, (int)11>(T2 *)"
LOSS = "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float, LogSoftMaxForwardEpilogue>(T4 *)"
LOSS_BACKWARD = "void at::native::<unnamed>::cunn_SoftMaxBackward<(int)4, float, LogSoftMaxBackwardEpilogue>(T4 *)"
FILL = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, A>(int)"
SOFTMAX_BACKWARD = "void at::native::<unnamed>::softmax_warp_backward<float, float, float, (int)11>(T2 *)"
COPY = "void at::native::elementwise_kernel<(int)2, at::native::direct_copy_kernel_cuda(at::I &)>(int)"
ODD = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_nn_align1>(T1::Params)"
FLASH = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>(P)"
SPLIT_SUM = "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float>(P)"
GATHER = "void at::native::vectorized_gather_kernel<(int)16, long>(char *)"
LAYOUT = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, float>(P, T1 *)"


def launched(names: list[str], blocks: dict[str, float] | None = None, *, is_flat: bool = False) -> LaunchShapes:
    """Return launch shapes of these kernels, each of 4 blocks unless `blocks` says otherwise."""
    shorts = [name.split("<")[0].split("::")[-1] for name in names]
    both = pl.DataFrame({"name": shorts, "demangled": names}, schema=dict.fromkeys(("name", "demangled"), pl.String))
    kinds = shape_kinds(both).with_columns(both["demangled"])
    counts = np.array([(blocks or {}).get(name, 4) for name in names], np.float64)
    return LaunchShapes(kinds, counts, np.full(len(names), is_flat))


def sequence(
    names: list[str], ns: list[int] | None = None, streams: list[int] | None = None, **gpu: object
) -> KernelSequence:
    """Return kernels of 10 µs in order, each of 4 blocks, on an H200 unless `gpu` says otherwise."""
    distinct = list(dict.fromkeys(names))
    limits: dict[str, object] = {"sms": 132, "gpu": "NVIDIA H200"} | gpu
    return KernelSequence(
        places=np.arange(len(names)),
        ns=np.array(ns or [10_000] * len(names), np.int64),
        stream=np.array(streams or [0] * len(names), np.int64),
        shape=np.array([distinct.index(name) for name in names], np.int64),
        shapes=launched(distinct),
        **limits,  # type: ignore[arg-type]
    )


def test_tf32_scales_fp32_products_alone() -> None:
    kernels = sequence([FP32_GEMM, ADD, BF16_GEMM])
    estimate = dense(TF32.estimate(kernels), kernels)
    assert (estimate.middle < 1).tolist() == [True, False, False]
    assert (estimate.low <= estimate.middle).all() and (estimate.middle <= estimate.high).all()
    assert not estimate.gone.any()


def test_tf32_needs_a_gpu_that_gains() -> None:
    assert "not known" in str(TF32.estimate(sequence([FP32_GEMM], gpu="NVIDIA GeForce RTX 3090")))
    assert "not known" in str(TF32.estimate(sequence([FP32_GEMM], gpu="")))
    assert "no matrix product" in str(TF32.estimate(sequence([ADD])))
    assert not isinstance(BF16.estimate(sequence([FP32_GEMM], gpu="NVIDIA GeForce RTX 3090")), str)


def test_chains_are_fused_to_their_longest_kernel() -> None:
    kernels = sequence([ADD, ADD, FP32_GEMM, ADD], [10, 30, 99, 10])
    estimate = dense(COMPILE.estimate(kernels), kernels)
    np.testing.assert_allclose(estimate.low, [0.75 * CHAIN_LEFT[0]] * 2 + [1, 1])
    assert estimate.gone.tolist() == [False, True, False, False]


def test_chains_end_at_a_change_of_stream() -> None:
    assert isinstance(COMPILE.estimate(sequence([ADD, ADD], streams=[0, 1])), str)
    kernels = sequence([ADD, ADD, ADD, ADD], streams=[0, 0, 1, 1])
    estimate = dense(COMPILE.estimate(kernels), kernels)
    assert estimate.gone.tolist() == [False, True, False, True]


def test_compiled_attention_becomes_slower() -> None:
    estimate = COMPILE.estimate(sequence([ADD, ADD, FLASH, FP32_GEMM], [10_000, 30_000, 20_000, 99_000]))
    assert not isinstance(estimate, str)
    assert estimate.rows.tolist() == [0, 1, 2]
    assert estimate.middle[2] > 1
    assert not estimate.gone[2]


def test_attention_with_odd_lengths_gains_more() -> None:
    even, odd = (SDPA.estimate(sequence([product, SOFTMAX, product], [1_000_000] * 3)) for product in (BF16_GEMM, ODD))
    assert not isinstance(even, str)
    assert not isinstance(odd, str)
    assert odd.middle[0] < even.middle[0]


def test_attention_by_separate_kernels() -> None:
    kernels = sequence([ADD, COPY, BF16_GEMM, ADD, SOFTMAX, ADD, BF16_GEMM, COPY, ADD])
    estimate = dense(SDPA.estimate(kernels), kernels)
    assert estimate.gone.tolist() == [False, True, False, True, True, True, False, True, False]
    assert (estimate.middle[[2, 6]] > estimate.middle[4]).all()
    assert (estimate.middle[[0, 8]] == 1).all()


def test_attention_has_four_products_in_the_backward_pass() -> None:
    kernels = sequence([BF16_GEMM, ADD, *[BF16_GEMM] * 2, SOFTMAX_BACKWARD, *[BF16_GEMM] * 2, ADD, BF16_GEMM])
    estimate = dense(SDPA.estimate(kernels), kernels)
    assert (estimate.middle < 1).tolist() == [False, False, *[True] * 5, False, False]
    assert estimate.gone.tolist() == [place == 4 for place in range(9)]


def test_softmax_between_products_of_one_batch_is_no_attention() -> None:
    """A classifier or a policy has one product before its softmax; attention has one for each head and sample."""
    kernels = sequence([BF16_GEMM, SOFTMAX, BF16_GEMM])
    assert "no softmax" in str(SDPA.estimate(kernels._replace(shapes=launched([BF16_GEMM, SOFTMAX], is_flat=True))))


def test_attention_over_a_graph_has_an_activation_before_its_softmax() -> None:
    """`pygat` of round 14: scores are sums of two vectors, which no fused attention kernel computes."""
    leaky = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::<unnamed>::leaky_relu_kernel(int)>"
    assert not isinstance(SDPA.estimate(sequence([BF16_GEMM, SOFTMAX, BF16_GEMM])), str)
    assert "no softmax" in str(SDPA.estimate(sequence([BF16_GEMM, leaky, SOFTMAX, BF16_GEMM])))


def test_attention_whose_grids_hide_the_batch_shows_in_the_softmax() -> None:
    """Each kernel of a persistent product has a flat grid; attention's softmax passes over what the product writes."""

    def finds_attention(inner: str, softmax_ns: int) -> bool:
        kernels = sequence([BF16_GEMM, inner, SOFTMAX, BF16_GEMM], [10_000, 10_000, softmax_ns, 10_000])
        kernels = kernels._replace(shapes=launched([BF16_GEMM, inner, SOFTMAX], is_flat=True))
        return not isinstance(SDPA.estimate(kernels), str)

    assert finds_attention(ADD, 30_000)
    assert not finds_attention(ADD, 9_000) and not finds_attention(GATHER, 30_000)


def test_softmax_where_attention_is_fused_selects_experts() -> None:
    kernels = sequence([FLASH, BF16_GEMM, SOFTMAX, BF16_GEMM])
    assert "fused kernels already" in str(SDPA.estimate(kernels))


def test_attention_at_both_ends_of_a_capture() -> None:
    kernels = sequence([BF16_GEMM, SOFTMAX_BACKWARD, BF16_GEMM])
    assert (dense(SDPA.estimate(kernels), kernels).middle < 1).all()


@pytest.mark.parametrize(("columns", "unpadded"), [(50257, True), (50258, True), (50304, False)])
def test_vocabulary_from_launch_shapes(columns: int, unpadded: bool) -> None:
    names = [FP32_GEMM, ADD, FP32_GEMM, LOSS, FILL, LOSS_BACKWARD, FP32_GEMM, FP32_GEMM, ADD, FP32_GEMM]
    kernels = sequence(names, [1_000_000] * len(names))
    rows = 8192
    blocks = {FILL: -(-rows * columns // 1024), LOSS: rows, LOSS_BACKWARD: rows}
    kernels = kernels._replace(shapes=launched(list(dict.fromkeys(names)), blocks))
    estimate = TF32.estimate(kernels)
    assert not isinstance(estimate, str)
    slow = estimate.rows[estimate.middle > estimate.middle[0]]
    assert slow.tolist() == ([2, 6, 7] if unpadded else [])
    assert ("vocabulary" in estimate.detail) is unpadded


def test_precision_gains_less_where_names_or_shapes_tell_it() -> None:
    normal, transposed = "ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nt"
    kernels = sequence([normal, transposed, FP32_CONVOLUTION], [1_000_000] * 3)
    estimate = dense(TF32.estimate(kernels), kernels)
    assert estimate.middle[0] < estimate.middle[1]
    assert estimate.middle[0] < estimate.middle[2]


def test_remaining_kernels_are_launched() -> None:
    kernels = sequence([FP32_GEMM] * 2, [1_000, 1_000_000])
    estimate = dense(TF32.estimate(kernels), kernels)
    assert estimate.middle[0] == 1
    assert estimate.middle[1] < 0.5


@pytest.mark.parametrize("values", ["(int)4, (bool)1", "4, true"])
def test_loss_is_no_attention(values: str) -> None:
    assert isinstance(SDPA.estimate(sequence([BF16_GEMM, LOSS, BF16_GEMM])), str)
    classes = f"softmax_warp_forward<c10::Half, c10::Half, float, {values}, false>"
    assert isinstance(SDPA.estimate(sequence([BF16_GEMM, classes, BF16_GEMM])), str)
    loss = "nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>"
    assert isinstance(SDPA.estimate(sequence([BF16_GEMM, SOFTMAX, loss, SOFTMAX_BACKWARD, BF16_GEMM])), str)
    assert isinstance(SDPA.estimate(sequence([SOFTMAX, BF16_GEMM])), str)


def test_optimizer_tensor_by_tensor() -> None:
    kernels = sequence([BF16_GEMM, *[ADD, ADDCDIV] * 8, BF16_GEMM, ADD])
    estimate = dense(FUSED_OPTIMIZER.estimate(kernels), kernels)
    assert estimate.gone.tolist() == [False, *[True] * 16, False, False]
    assert isinstance(FUSED_OPTIMIZER.estimate(sequence([ADD, ADDCDIV] * 3)), str)


@pytest.mark.parametrize("functor", ["AdamFunctor<float>, float", "LAMBStage2Functor<c10::Half>", "SGDFunctor<3>"])
def test_fused_optimizer_of_apex_is_fused(functor: str) -> None:
    """The GradScaler's kernel before the update changes no parameter (`ddp4_bucket100` of round 13)."""
    fused = f"multi_tensor_apply_kernel<TensorListMetadata<4>, {functor}>(int)"
    unscaled = "at::native::multi_tensor_apply_kernel<at::native::_amp_foreach_non_finite_check_and_unscale_cuda_>(int)"
    assert isinstance(FUSED_OPTIMIZER.estimate(sequence([BF16_GEMM, unscaled, fused])), str)
    update = "at::native::multi_tensor_apply_kernel<at::native::PointwiseOpScalarListFunctor<float, 3, 3, 0> >(int)"
    estimate = FUSED_OPTIMIZER.estimate(sequence([BF16_GEMM, unscaled, update]))
    assert isinstance(estimate, Estimate) and estimate.rows.tolist() == [1, 2]


def test_shapes() -> None:
    layout = CHANNELS_LAST.estimate(sequence([LAYOUT, ADD]))
    odd = PAD.estimate(sequence([ODD, BF16_GEMM]))
    assert not isinstance(layout, str)
    assert not isinstance(odd, str)
    assert (layout.rows.tolist(), layout.middle.tolist()) == ([0], [0.0])
    assert odd.rows.tolist() == [0] and odd.middle[0] < 1


@pytest.mark.parametrize(("count", "applies"), [(3, False), (4, True)])
def test_equal_small_products(count: int, applies: bool) -> None:
    estimate = BATCH.estimate(sequence([BF16_GEMM] * count))
    assert isinstance(estimate, str) is not applies
    if not isinstance(estimate, str):
        assert int(estimate.gone.sum()) == count - 1


def test_small_products_by_turns() -> None:
    """A backward pass has two products for each of the forward pass, one of them split, with a sum after it."""
    rounds = sequence([BF16_GEMM, SPLIT_SUM, ODD] * 5 + [ADD])
    estimate = BATCH.estimate(rounds)
    assert not isinstance(estimate, str)
    assert estimate.rows.tolist() == list(range(15))
    assert estimate.gone.tolist() == [False] * 3 + [True] * 12
    assert isinstance(BATCH.estimate(sequence([BF16_GEMM, ADD, ODD] * 5)), str)


def test_no_kernels() -> None:
    assert all(isinstance(speedup.estimate(sequence([])), str) for speedup in SPEEDUPS)


def test_runs_and_sums() -> None:
    first, last = np.array([0, 3]), np.array([2, 5])
    assert marked(first, last, 6).tolist() == [True, True, False, True, True, False]
    assert per_run(np.array([1, 2, 4, 8, 16, 32]), first, last, np.add).tolist() == [3, 24]


def test_benchmark_of_alignments_has_no_odd_dimensions() -> None:
    """The aligned kernel runs on the same grid: its dimensions are multiples of 8 (`cutlass_large` of round 12)."""
    aligned = ODD.replace("align1", "align8")
    assert isinstance(PAD.estimate(sequence([ODD, BF16_GEMM])), Estimate)
    assert PAD.estimate(sequence([ODD, aligned])) == "no tensor-core product has dimensions that slow it"
