"""What a kernel computes, from its name: family, precision and use of tensor cores (docs/definitions.md "Kernels").

Names are those of cuBLAS, cuDNN, CUTLASS, FlashAttention, PyTorch, JAX, TensorRT, vLLM, ggml, CuPy and the compilers,
from Volta to Blackwell, and of the libraries of AMD GPUs. Anything that a name does not contain is None.

All names are searched at once, by an engine without backtracking: its time grows only linearly with the length of the
names, whatever they contain.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import starmap
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

MAX_KEPT = 1 << 14  # names whose kinds are kept
SEARCHED_TOGETHER = 16  # patterns; a name that matches one of them is not searched further

# The first pattern that occurs in the full name decides: specific names stand before general ones. A third text says
# what may not follow in the same word.
FAMILIES: tuple[tuple[str, ...], ...] = (
    ("communication", r"^(void )?(nccl|rccl|nvshmem|mscclpp|deep_ep)|cross_device_reduce|multimem_|shot_all_reduce"),
    ("indexing", r"fbgemm_gpu::|_finalize_matmul_scatter|bounds_check_indices|moe::dev::(routing|finalize)"),
    ("copy", r"reshape_and_cache|store_kvcache|recat_copy"),
    ("elementwise", r"rotary_embedding|quantize_with|fp8_quant|act_and_mul"),
    ("attention", r"flash_(fwd|bwd)|flash::|fmha|sdpa|flash_attn|flashinfer|attention|paged_attn|compute_dot_do_o"),
    ("attention", r"convert_dq_to_16bits|compute_dq|merge_attn|decode_attn|prefill"),
    ("optimizer", r"FusedOptimizer|FusedAdam|multi_tensor_(apply|adam|sgd|lamb)"),
    ("optimizer", r"adam_kernel|adamw|sgd_kernel|lamb_stage"),
    ("convolution", r"convolve|conv(olution)?_?(1d|2d|3d|depthwise)"),
    ("convolution", r"[fdw](prop|grad)", r"gemm_f(64|8)"),
    ("convolution", r"winograd|_grad_engine"),
    ("convolution", r"(dgrad|wgrad)|scudnn|cudnn_(infer|train)"),
    ("convolution", r"conv_depthwise|ConvForward|ConvBackward|ImplicitGemmConv"),
    ("convolution", r"flip_filter|region_transform_ABC|igemm_(fwd|bwd|wrw)_|grouped_conv|xdlops_bwd_weight"),
    ("fft", r"fft|DFT_|radix\d+_|c2r|r2c"),
    ("gemm", r"gemm|gemv|nvjet|splitKreduce|cutlass.*(Gemm|sgemm)|^Cijk_|^bmm_|mul_mat|epilogue::impl"),
    ("gemm", r"_mma|Kernel2?<cutlass|matmul|cublas|dot_kernel|reduce_1Block"),
    ("gemm", r"bitsandbytes|marlin|gptq|awq|deep_gemm|gemm_fusion|ampere_s?\d+|sptrsv|syrk|trsm"),
    ("normalization", r"batch_?norm|bn_(fw|bw)|layer_?norm|LayerNorm"),
    ("normalization", r"rms_?norm|RMSNorm|Rmsnorm|RowwiseMoments|GroupNorm|group_norm"),
    ("normalization", r"GammaBetaBackward|instance_norm|renorm"),
    ("softmax", r"soft_?[mM]ax|cross_entropy|nll_loss|SoftMax"),
    ("sort_scan", r"radix_?sort|RadixSort|MergeSort|bitonic|sort(ed|ing)?(_|Kernel|ByKey)"),
    ("sort_scan", r"topk|TopK|DeviceScan|cub.*[sS]can|UniqueByKey"),
    ("sort_scan", r"DeviceSelect|DevicePartition|DeviceHistogram|RunLength|cumsum|prefix_?sum"),
    ("indexing", r"[eE]mbedding|index(_|Func|Select|ing)|gather|get_rows"),
    ("indexing", r"scatter|index_elementwise|sum_and_scatter|compute_grad_weight"),
    ("random", r"dropout|philox|curand|distribution_|random|uniform_and|normal_and_trans|bernoulli|rng_|threefry"),
    ("layout", r"nchwToNhwc|nhwcToNchw|nchw2nhwc|transpose|permut|im2col|col2im|tensorTransform|layout_transform"),
    ("layout", r"genericReformat"),
    ("copy", r"CatArray|direct_copy|_copy_kernel|copy_device|FillFunctor"),
    ("copy", r"fill_kernel|memset|memcpy|concat|wrapped_convert|cupy_copy"),
    ("copy", r"bfloat16_copy|float16_copy|pad_kernel"),
    ("copy", r"replication_pad|wrapped_(copy|broadcast|transpose|slice)|CUDAFunctor_copy|cupy_fill|^cpy_"),
    ("pooling", r"pool(ing)?(_|2d|3d|For|Back|Max|Avg)|max_pool|avg_pool|adaptive_average"),
    ("fused", r"^triton_|triton_(poi|red|per|tem|for)_|^(input_|loop_)?\w*fusion|^fused_\w+_\d"),
    ("fused", r"nvfuser|CudaCodeGen|kernel_cuda_\d|__myl_|^wrapped_|generatedNativePointwise"),
    ("reduction", r"reduce|DeviceReduce|welford|\bsum_|_sum\b"),
    ("reduction", r"argmax|argmin|l2norm|lpnorm|norm_kernel|cupy_(max|min|sum|mean)"),
    ("elementwise", r"elementwise|elementWise|elemWise|pointwise|cupy_"),
    ("elementwise", r"launch_clamp|scalePackedTensor|op_tensor|activation_|masked_scale"),
    ("elementwise", r"(^|::)(add|mul|sub|relu|gelu|silu|tanh|sigmoid|swiglu|axpy|saxpy|scal)(_|$|<)"),
    ("elementwise", r"foreach|_act_|rotary|rope_|quantize_|bin_bcast|unary_op_kernel|SubTensorOp"),
)  # fmt: skip

# Matrix kernels: (precision, whether they use tensor cores) and a pattern as above; the first that occurs decides.
_MATRIX_UNITS: tuple[tuple[Any, ...], ...] = (
    (("fp32", False), r"_ffma_|simt_sgemm"),
    (("fp32", False), "f32f32_f32f32_f32", "tensor"),
    (("fp64", False), r"_dfma_|simt_dgemm"),
    (("fp64", False), "f64f64_f64f64_f64", "tensor"),
    ((None, False), r"simt_[ch]gemm|simt_"),
    (("bf16", True), r"bf16xmxfp4"),  # Triton widens the weights
    (("fp8", True), r"[eE]4m3|[eE]5m2|_fp8|qgmma|nvjet(_sm\d+)?_q"),
    (("fp4", True), r"e2m1|nvfp4|mxfp4|_fp4|nvjet(_sm\d+)?_o"),
    (("fp16", True), r"nvjet(_sm\d+)?_h"),
    (("bf16", True), r"nvjet(_sm\d+)?_t"),
    (("tf32", True), r"nvjet(_sm\d+)?_s"),
    ((None, True), r"nvjet"),
    (("fp16", True), r"s1688f16"),
    (("bf16", True), r"s1688bf16"),
    (("tf32", True), r"tf32|tfloat32"),
    (("fp64", True), r"d884|tensorop_d|f64f64_\w*tensor"),
    (("bf16", True), r"tensorop_bf16|bf16_s\d{3,}|bf16bf16|s\d{4,}gemm_bf16|bf16gemm"),
    (("fp16", True), r"tensorop_f16|fp16_s\d{3,}|[hs]884|h1688|h16816|f16_s\d{3,}|f16f16"),
    (("fp16", True), r"s\d{4,}(gemm|fprop|dgrad|wgrad)_fp?16"),
    (("bf16", True), r"^Cijk_\w+_BBS_|igemm_\w+_bf16_|gtcx\d?_\w*bf16"),
    (("fp16", True), r"^Cijk_\w+_HHS_|igemm_\w+_fp16_"),
    ((None, True), r"^Cijk_\w+_MI\d|mfma|xdl"),
    (("int8", True), r"i8816|i16832|imma|i8i8|tensorop_i|s8_"),
    (("tf32", True), r"s1688"),
    (("tf32", True), r"fmha_cutlass\w_f32_\w*sm[89]"),
    ((None, True), r"(wgmma|wmma|hmma|mma_sync|MmaTensorOp|OpClassTensorOp|s16816|tensorop|utcmma|tcgen05)"),
    ((None, True), r"flash_(fwd|bwd)\w*kernel|pytorch_flash|fmha_v\d|fmhaSm\d"),
    (("fp32", False), r"(volta|turing|ampere|maxwell|pascal|kernel)_sgemm|_scudnn|sgemm|winograd_nonfused.*<float"),
    (("fp64", False), r"(volta|turing|ampere|maxwell|pascal|kernel)_dgemm|dgemm"),
    (("fp16", False), r"_hgemm"),
    (("fp32", False), r"(volta|ampere|turing)_g?cgemm"),
    (("fp64", False), r"(volta|ampere|turing)_g?zgemm"),
    ((None, False), r"gemv|splitKreduce|dot_kernel|dgrad_(alg\d_)?engine|wgrad_alg\d_engine|gemmSN|epilogue::impl"),
    ((None, False), r"flip_filter|implicit_convolve_sgemm|conv_depthwise|grouped_direct|reduce_wgrad"),
)  # fmt: skip
MATRIX = ("gemm", "convolution", "attention")  # families whose kernels can use tensor cores
# Families that may use tensor cores although their names do not say so. The others only move or combine elements.
_UNKNOWN_FAMILIES = ("custom", "fused")
_UNIT = {"precision": pl.String, "tensor_core": pl.Boolean}
_FIELDS = ("label", "family", "precision", "tensor_core")
_LIBRARIES = r"at::native|cudnn::|cub::|thrust::|^cupy_|c10::|nccl|^triton_(poi|red|per)_|_fusion(_\d+)?$"
_ELEMENT_TYPES = {
    "bf16": r"\b(c10::BFloat16|__nv_bfloat16|cutlass::bfloat16_t|nv_bfloat16|bfloat16)\b|__hip_bfloat16|DF16b|Sum_bf16",
    "fp16": r"\b(c10::Half|__half|cutlass::half_t|half|float16)\b|Sum_(half|f16)",
    "fp32": r"\b(float2?|float32|Float32)\b|_float32|_f32_|Sum_float",
    "fp64": r"\b(double2?|float64|Float64)\b|_float64",
}
_TEMPLATE = r"\bKernel2?<(?:cutlass::|cutlass__\w+::)?([A-Za-z_]\w*)"
_FUNCTOR = (
    r"(?:at::native::|<unnamed>::|binary_internal::)"
    r"\w*(?:[fF]unctor|Ops|_kernel_cuda|_kernel_impl|KernelImpl|CUDAKernelImpl|masked_scale_kernel|scalar_kernel)\w*"
)
_NO_FUNCTOR = "^(vectorized|unrolled|elementwise_kernel|gpu_kernel|reduce_kernel|multi_tensor)"
_WRAPPERS = ("AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "UnaryFunctor")
_GENERIC = "elementwise_kernel|reduce_kernel|multi_tensor_apply_kernel|^Kernel2?$"


class KernelKind(NamedTuple):
    """The kind of a kernel, from its name; None where the name does not contain it."""

    label: str  # a name that differs between the uses of a generic kernel
    family: str
    precision: str | None
    tensor_core: bool | None


_of_names: dict[tuple[str, str], KernelKind] = {}
_of_frames: dict[int, tuple[weakref.ref[pl.DataFrame], list[KernelKind]]] = {}  # those with more than MAX_KEPT names
_searching = Lock()  # tables are measured in several threads


def shape_kinds(shapes: pl.DataFrame) -> list[KernelKind]:
    """Return the kinds of Trace.shapes, from their names; the row of other operations has the label "".

    A name is searched once, because tables, findings and predictions ask for the same kinds.
    """
    with _searching:
        known, kinds = _of_frames.get(id(shapes), (None, []))
        if known is not None and known() is shapes:
            return kinds
        kinds = _kinds(shapes.select(pl.col("name", "demangled").fill_null("")))
        if len(shapes) > MAX_KEPT:
            key = id(shapes)
            _of_frames[key] = weakref.ref(shapes, lambda _: _of_frames.pop(key, None)), kinds
        return kinds


def kernel_kind(name: str, demangled: str) -> KernelKind:
    """Return the kind of one kernel from its short and its full name."""
    return shape_kinds(pl.DataFrame({"name": [name], "demangled": [demangled]}))[0]


def _kinds(names: pl.DataFrame) -> list[KernelKind]:
    """Return the kind of each row of `name` and `demangled`."""
    distinct = names.unique(maintain_order=True)
    if len(distinct) > MAX_KEPT:
        known = dict(zip(distinct.iter_rows(), _search(distinct), strict=True))
    else:
        known = _of_names
        new = [row for row in distinct.iter_rows() if row not in known]
        if len(known) + len(new) > MAX_KEPT:
            known.clear()
            new = distinct.rows()
        if new:
            known.update(zip(new, _search(pl.DataFrame(new, schema=names.schema, orient="row")), strict=True))
    return [known[row] for row in names.iter_rows()]


def _search(names: pl.DataFrame) -> list[KernelKind]:
    # torch.profiler writes "(anonymous namespace)", whose parenthesis does not begin parameters.
    full = names["demangled"].str.replace_all("(anonymous namespace)", "<unnamed>", literal=True)
    family = np.array([*(name for name, *_ in FAMILIES), "custom"])[_first_match(_without_parameters(full), FAMILIES)]
    unit = np.full(len(full), len(_MATRIX_UNITS))
    matrix = np.isin(family, MATRIX)
    unit[matrix] = _first_match(full.filter(pl.Series(matrix)), _MATRIX_UNITS)
    units = pl.DataFrame([*(row[0] for row in _MATRIX_UNITS), (None, None)], schema=_UNIT, orient="row")
    kinds = units[unit].with_columns(_labels(names["name"], full), pl.Series("family", family), full.alias("full"))
    return list(starmap(KernelKind, kinds.with_columns(**_tensor_core_and_type()).select(_FIELDS).iter_rows()))


def _first_match(texts: pl.Series, rows: Sequence[tuple[Any, ...]]) -> NDArray[np.int64]:
    """Return the number of the first row whose pattern occurs in each text; the number of rows where none does."""
    number, left, frame = np.full(len(texts), len(rows)), np.arange(len(texts)), texts.to_frame("text")
    for first in range(0, len(rows), SEARCHED_TOGETHER):
        searches = [_occurs(*row[1:]).alias(str(place)) for place, row in enumerate(rows[first:][:SEARCHED_TOGETHER])]
        occurs = frame.select(searches).to_numpy()
        matched = occurs.any(axis=1)
        number[left[matched]] = first + occurs[matched].argmax(axis=1)
        left, frame = left[~matched], frame.filter(pl.Series(~matched))
        if not len(left):
            break
    return number


def _occurs(pattern: str, not_before: str = "") -> pl.Expr:
    """Return whether a pattern occurs in `text` without the other one behind it in the same word."""
    text = pl.col("text")
    if not_before:
        text = text.str.replace_all(rf"(?:{pattern})\w*(?:{not_before})", " ")
    return text.str.contains(pattern)


def _without_parameters(full: pl.Series) -> pl.Series:
    """Return functions' names with template arguments; parameter types say little about what a function computes."""
    template, call = full.str.find("<", literal=True), full.str.find("(", literal=True)
    function = pl.when(template < call).then(full.str.extract(r"^((?s:.*)>)\("))
    return pl.select(pl.coalesce(function, full.str.extract(r"^([^(]+)"), full)).to_series()


def _tensor_core_and_type() -> dict[str, pl.Expr]:
    """Return the use of tensor cores and the precision, for rows with `full`, `family` and what _MATRIX_UNITS says.

    The precision of a library's kernel is the type that occurs first in its name, that of another the only one that
    occurs. A float in the name of a kernel that uses tensor cores is the type that it reads or adds up in.
    """
    full, family, tensor_core = pl.col("full"), pl.col("family"), pl.col("tensor_core")
    library = tensor_core.is_not_null() | full.str.contains(_LIBRARIES)
    without = ~family.is_in(MATRIX) & (library | ~family.is_in(_UNKNOWN_FAMILIES))
    tensor_core = pl.when(without).then(False).otherwise(tensor_core)
    places = {kind: full.str.find(pattern) for kind, pattern in _ELEMENT_TYPES.items()}
    places["fp32"] = pl.when(~tensor_core.fill_null(False)).then(places["fp32"])
    first = pl.min_horizontal(*places.values())
    single = pl.sum_horizontal(*(place.is_not_null() for place in places.values())) == 1
    element = pl.coalesce(pl.when(place == first).then(pl.lit(kind)) for kind, place in places.items())
    precision = pl.coalesce("precision", pl.when(single | library).then(element))
    return {"tensor_core": tensor_core, "precision": precision}


def _labels(names: pl.Series, full: pl.Series) -> pl.Series:
    """Return the short names; for generic kernels the operations that their template arguments name."""
    labels = pl.DataFrame({"label": names, "full": full}).with_row_index("row")
    generic = labels.filter(pl.col("label").str.contains(_GENERIC))
    cutlass = pl.col("label").is_in(("Kernel", "Kernel2"))
    function = pl.col("functor").str.extract(r"(\w+)$")
    functors = (
        generic.filter(~cutlass)
        .select("row", functor=pl.col("full").str.extract_all(_FUNCTOR))
        .explode("functor")
        .select("row", functor=function)
        .filter(~pl.col("functor").str.contains(_NO_FUNCTOR))
        .sort(pl.col("functor").is_in(_WRAPPERS), maintain_order=True)
        .unique("row", keep="first", maintain_order=True)
    )
    plain = pl.col("label").str.strip_prefix("vectorized_").str.strip_prefix("unrolled_")
    template = pl.when(cutlass).then(pl.col("full").str.extract(_TEMPLATE))
    specific = generic.join(functors, on="row", how="left").select(
        "row", specific=pl.coalesce(template, pl.format("{}<{}>", plain, "functor"))
    )
    named = labels.join(specific, on="row", how="left", maintain_order="left")
    return named.select(pl.coalesce("specific", "label").alias("label")).to_series()
