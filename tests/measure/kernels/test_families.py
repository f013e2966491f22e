"""Kinds of kernels by their names. The names are those of real captures; the kinds were decided by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceview.measure.kernels.families import kernel_kind, shape_kinds

NATIVE = "void at::native::"
KINDS: list[tuple[str, str, str, str | None, bool | None]] = [
    ("nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT", "", "gemm", "bf16", True),
    ("nvjet_sm90_hsh_96x64_64x10_1x2_h_bz_bias_TNN", "", "gemm", "fp16", True),
    ("volta_sgemm_128x64_nn", "", "gemm", "fp32", False),
    ("ampere_sgemm_128x64_nn", "", "gemm", "fp32", False),
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nn", "", "gemm", "bf16", True),
    ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn", "", "gemm", "fp16", True),
    ("volta_h884gemm_128x64_ldg8_nn", "", "gemm", "fp16", True),
    (
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4",
        "",
        "gemm",
        "fp32",
        False,
    ),
    ("sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32_warpgroupsize1x1x1_execute", "", "gemm", "tf32", True),
    (
        "Kernel2",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(T1::Params)",
        "gemm",
        "fp32",
        False,
    ),
    (
        "Kernel2",
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_32x6_nn_align4>(T1::Params)",
        "gemm",
        "tf32",
        True,
    ),
    (
        "Kernel2",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_nn_align2>(T1::Params)",
        "gemm",
        "bf16",
        True,
    ),
    (
        "Kernel",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4>(P)",
        "convolution",
        "bf16",
        True,
    ),
    (
        "sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64",
        "",
        "convolution",
        "bf16",
        True,
    ),
    ("cudnn_infer_volta_scudnn_128x64_relu_xregs_large_nn_v1", "", "convolution", "fp32", False),
    (
        "dgrad_engine",
        "void cudnn::detail::dgrad_engine<float, (int)512, (int)6, (int)5>(int, int, int, const T1 *)",
        "convolution",
        "fp32",
        False,
    ),
    (
        "flash_fwd_kernel",
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, cutlass::bfloat16_t>>(P)",
        "attention",
        "bf16",
        True,
    ),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64", "", "attention", None, True),
    (
        "batch_norm_backward_kernel",
        f"{NATIVE}batch_norm_backward_kernel<c10::BFloat16, float>(A)",
        "normalization",
        "bf16",
        False,
    ),
    (
        "vectorized_layer_norm_kernel",
        f"{NATIVE}<unnamed>::vectorized_layer_norm_kernel<float, float>(int)",
        "normalization",
        "fp32",
        False,
    ),
    ("cunn_SoftMaxBackward", f"{NATIVE}<unnamed>::cunn_SoftMaxBackward<(int)4, float>(T2 *)", "softmax", "fp32", False),
    (
        "multi_tensor_apply_kernel",
        f"{NATIVE}<unnamed>::multi_tensor_apply_kernel<M<(int)4>, <unnamed>::FusedAdamMathFunctor<float, (int)4>>(T1)",
        "optimizer",
        "fp32",
        False,
    ),
    (
        "vectorized_elementwise_kernel",
        f"{NATIVE}vectorized_elementwise_kernel<(int)8, at::native::bfloat16_copy_kernel_cuda(at::Base &)>(int)",
        "copy",
        None,
        False,
    ),
    (
        "vectorized_elementwise_kernel",
        f"{NATIVE}vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>, std::array<char *>>(int)",
        "elementwise",
        "fp32",
        False,
    ),
    (
        "reduce_kernel",
        f"{NATIVE}reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, MeanOps<float>>>(T3)",
        "reduction",
        "fp32",
        False,
    ),
    (
        "nchwToNhwcKernel",
        "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, float>(P, T1 *)",
        "layout",
        "bf16",
        False,
    ),
    (
        "CatArrayBatchedCopy",
        f"{NATIVE}<unnamed>::CatArrayBatchedCopy<Type<(unsigned int)2>>(T1 *)",
        "copy",
        None,
        False,
    ),
    ("indexFuncLargeIndex", f"{NATIVE}indexFuncLargeIndex<float, long>(T)", "indexing", "fp32", False),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "", "communication", "fp32", False),
    ("triton_poi_fused_add_mul_3", "", "fused", None, False),
    ("loop_add_fusion", "", "fused", None, False),
    ("jacobi_kernel", "jacobi_kernel(float *, const float *, float *, int, int, int)", "custom", "fp32", None),
    ("spread_input_kernel", "spread_input_kernel(const float *, __half *, int)", "custom", None, None),
    (
        "CatArrayBatchedCopy",
        f"{NATIVE}(anonymous namespace)::CatArrayBatchedCopy<float>(T*)",
        "copy",
        "fp32",
        False,
    ),
    ("mul_mat_q", "void mul_mat_q<(ggml_type)12, 64, false>(const char *, const int *)", "gemm", None, None),
    ("rms_norm_f32", "void rms_norm_f32<1024, true>(const float *, float *, int)", "normalization", "fp32", False),
    ("gemm_fusion_dot_3", "", "gemm", None, None),
    ("kernel_IMGA", "kernel_IMGA(int *, curandStateXORWOW *, int *)", "custom", None, None),
]


@pytest.mark.parametrize(("name", "demangled", "family", "precision", "tensor_core"), KINDS)
def test_kinds(name: str, demangled: str, family: str, precision: str | None, tensor_core: bool | None) -> None:
    kind = kernel_kind(name, demangled or name)
    assert (kind.family, kind.precision, kind.tensor_core) == (family, precision, tensor_core)


def test_generic_kernels_are_labelled_by_their_operation() -> None:
    functor = "at::native::BinaryFunctor<float, at::native::binary_internal::MulFunctor<float>>"
    product = f"{NATIVE}elementwise_kernel<(int)2, {functor}>"
    assert kernel_kind("elementwise_kernel", product).label == "elementwise_kernel<MulFunctor>"
    gemm = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(T1::Params)"
    assert kernel_kind("Kernel2", gemm).label == "cutlass_80_simt_sgemm_256x128_8x4_nt_align1"
    assert kernel_kind("stencil", "stencil(float *)").label == "stencil"


@pytest.mark.parametrize(
    ("demangled", "label"),
    [
        (
            "void cutlass::device_kernel<moe::grouped_gemm::cuda::m_grouped::GemmKernel>(T1::Params)",
            "grouped_gemm GemmKernel",
        ),
        (
            "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::Main<2>>>>(T1::Params)",
            "FlashAttnFwdSm90",
        ),
        (
            "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int>>>(T1::Params)",
            "GemmUniversal",
        ),
        ("void kernel<float>(float *)", "kernel<float>"),
        ("void tools::kernel<(anonymous namespace)::Advance>(float *)", "Advance"),
        ("void kernel<256>(float *)", "kernel"),
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32_MI16x16x1_SN",
            "Cijk_Alik_Bljk_BBS_BH MT128x256x32",
        ),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16_SE_K1", "Cijk_Ailk_Bljk_SB MT64x64x16"),
    ],
)
def test_kernels_without_a_name_have_labels_from_their_arguments(demangled: str, label: str) -> None:
    short = next((name for name in ("device_kernel", "kernel") if f"{name}<" in demangled), demangled)
    assert kernel_kind(short, demangled).label == label


def test_names_of_public_captures() -> None:
    """The families of 530 names of 70 captures, as a reader labels them who knows the programs and the libraries."""
    path = Path(__file__).with_name("kernel_names.tsv")
    labelled = pl.read_csv(path, separator="\t", quote_char=None, infer_schema=False).fill_null("")
    full = pl.when(pl.col("demangled") == "").then("name").otherwise("demangled").alias("demangled")
    kinds = shape_kinds(labelled.select("name", full))
    right = [kind == family for kind, family in zip(kinds["family"], labelled["family"], strict=True)]
    assert len(right) >= 500
    assert sum(right) >= 0.97 * len(right)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("layer2cluster_kernel", "custom"),
        ("prefill_mask_kernel", "custom"),
        ("mul_matter_density", "custom"),
        ("draftKernel", "custom"),
        ("convert_kernel", "custom"),
        ("resorted_layers", "custom"),
        ("spectral_fft_stage", "fft"),
        ("MatMulTiled", "gemm"),
        ("rowSoftmax_v2", "softmax"),
        ("Conv2DKernel", "convolution"),
        ("void dpsk::ep::internode::dispatch<(bool)0, (int)8>(int4 *)", "communication"),
        ("void deep_ep::intranode::combine<(int)8>(int4 *)", "communication"),
        ("void cdpsk::ep::CUB_200_::cub::DeviceScanKernel<int>(int *)", "sort_scan"),
    ],
)
def test_words_decide_not_letters(name: str, family: str) -> None:
    assert kernel_kind(name, name).family == family


@given(st.sampled_from(["fft", "gemm", "attention", "softmax", "conv", "sort", "reduce"]), st.sampled_from(["x", "qu"]))
def test_words_inside_longer_words_say_nothing(word: str, around: str) -> None:
    assert kernel_kind(f"{around * 4}{word}{around * 6}_step", "").family == "custom"
    assert kernel_kind(f"step_{word}_step", f"step_{word}_step(float *)").family != "custom"


def public_captures() -> list[dict[str, Any]]:
    """Return the kernels of public captures that take most of their time, with labels that a reader gave them."""
    captures: list[dict[str, Any]] = json.loads(Path(__file__).with_name("public_names.json").read_text())
    return captures


@pytest.mark.parametrize("capture", public_captures(), ids=lambda capture: capture["capture"])
def test_labels_of_public_captures(capture: dict[str, Any]) -> None:
    total, right = 0.0, {"family": 0.0, "precision": 0.0, "tensor_core": 0.0}
    for share, name, demangled, *labels in capture["kernels"]:
        kind = kernel_kind(name, demangled)
        total += share
        for label, expected in zip(right, labels, strict=True):
            right[label] += share * (getattr(kind, label) == expected)
    assert total >= 0.95
    assert {label: time for label, time in right.items() if time < 0.95 * total} == {}


def test_tensor_cores_as_nsight_compute_counted_them() -> None:
    """Tensor operations of kernels of GPT-2, BERT and ResNet-50 on an H200, counted by ncu; a label may be unknown."""
    counted = json.loads(Path(__file__).with_name("h200_tensor_cores.json").read_text())
    kinds = [(kernel_kind(name.split("<")[0].split("::")[-1], name), used) for name, used in counted]
    assert len(kinds) >= 80
    assert [kind for kind, used in kinds if kind.tensor_core not in (None, used)] == []
    assert all(kind.tensor_core for kind, used in kinds if used)
