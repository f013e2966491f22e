"""What a kernel computes, from its name: family, precision and use of tensor cores (docs/definitions.md "Kernels").

Names are those of cuBLAS, cuDNN, CUTLASS, FlashAttention, PyTorch, JAX, TensorRT, vLLM, ggml, CuPy and the compilers,
from Volta to Blackwell, and of the libraries of AMD GPUs. Anything that a name does not contain is None.
"""

from __future__ import annotations

import re
from functools import lru_cache

from traceview.frozen import frozen

MAX_KINDS = 1 << 14  # names whose kinds are kept; tables, findings and predictions ask for the same ones

# The first pattern that occurs in the full name decides: specific names stand before general ones.
FAMILIES: tuple[tuple[str, str], ...] = (
    ("communication", r"^(void )?(nccl|rccl|nvshmem|mscclpp|deep_ep)|cross_device_reduce|multimem_|shot_all_reduce"),
    ("indexing", r"fbgemm_gpu::|_finalize_matmul_scatter|bounds_check_indices|moe::dev::(routing|finalize)"),
    ("copy", r"reshape_and_cache|store_kvcache|recat_copy"),
    ("elementwise", r"rotary_embedding|quantize_with|fp8_quant|act_and_mul"),
    ("attention", r"flash_(fwd|bwd)|flash::|fmha|sdpa|flash_attn|flashinfer|attention|paged_attn|compute_dot_do_o"),
    ("attention", r"convert_dq_to_16bits|compute_dq|merge_attn|decode_attn|prefill"),
    ("optimizer", r"FusedOptimizer|FusedAdam|multi_tensor_(apply|adam|sgd|lamb)"),
    ("optimizer", r"adam_kernel|adamw|sgd_kernel|lamb_stage"),
    ("convolution", r"convolve|conv(olution)?_?(1d|2d|3d|depthwise)"),
    ("convolution", r"[fdw](prop|grad)(?!\w*gemm_f(64|8))|winograd|_grad_engine"),
    ("convolution", r"(dgrad|wgrad)|scudnn|cudnn_(infer|train)"),
    ("convolution", r"conv_depthwise|ConvForward|ConvBackward|ImplicitGemmConv"),
    ("convolution", r"flip_filter|region_transform_ABC|igemm_(fwd|bwd|wrw)_|grouped_conv|xdlops_bwd_weight"),
    ("fft", r"fft|DFT_|radix(?=\d+_)|c2r|r2c"),
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
_COMPILED = tuple((name, re.compile(pattern)) for name, pattern in FAMILIES)

# Matrix kernels: (pattern, precision, whether they use tensor cores), the first that occurs decides.
_MATRIX_UNITS: tuple[tuple[re.Pattern[str], str | None, bool], ...] = tuple(
    (re.compile(pattern), precision, tensor)
    for pattern, precision, tensor in (
        (r"_ffma_|simt_sgemm|f32f32_f32f32_f32(?!\w*tensor)", "fp32", False),
        (r"_dfma_|simt_dgemm|f64f64_f64f64_f64(?!\w*tensor)", "fp64", False),
        (r"simt_[ch]gemm|simt_", None, False),
        (r"bf16xmxfp4", "bf16", True),  # Triton widens the weights
        (r"[eE]4m3|[eE]5m2|_fp8|qgmma|nvjet(_sm\d+)?_q", "fp8", True),
        (r"e2m1|nvfp4|mxfp4|_fp4|nvjet(_sm\d+)?_o", "fp4", True),
        (r"nvjet(_sm\d+)?_h", "fp16", True),
        (r"nvjet(_sm\d+)?_t", "bf16", True),
        (r"nvjet(_sm\d+)?_s", "tf32", True),
        (r"nvjet", None, True),
        (r"s1688f16", "fp16", True),
        (r"s1688bf16", "bf16", True),
        (r"tf32|tfloat32", "tf32", True),
        (r"d884|tensorop_d|f64f64_\w*tensor", "fp64", True),
        (r"tensorop_bf16|bf16_s\d{3,}|bf16bf16|s\d{4,}gemm_bf16|bf16gemm", "bf16", True),
        (r"tensorop_f16|fp16_s\d{3,}|[hs]884|h1688|h16816|f16_s\d{3,}|f16f16", "fp16", True),
        (r"s\d{4,}(gemm|fprop|dgrad|wgrad)_fp?16", "fp16", True),
        (r"^Cijk_\w+_BBS_|igemm_\w+_bf16_|gtcx\d?_\w*bf16", "bf16", True),
        (r"^Cijk_\w+_HHS_|igemm_\w+_fp16_", "fp16", True),
        (r"^Cijk_\w+_MI\d|mfma|xdl", None, True),
        (r"i8816|i16832|imma|i8i8|tensorop_i|s8_", "int8", True),
        (r"s1688", "tf32", True),
        (r"fmha_cutlass\w_f32_\w*sm[89]", "tf32", True),
        (r"(wgmma|wmma|hmma|mma_sync|MmaTensorOp|OpClassTensorOp|s16816|tensorop|utcmma|tcgen05)", None, True),
        (r"flash_(fwd|bwd)\w*kernel|pytorch_flash|fmha_v\d|fmhaSm\d", None, True),
        (r"(volta|turing|ampere|maxwell|pascal|kernel)_sgemm|_scudnn|sgemm|winograd_nonfused.*<float", "fp32", False),
        (r"(volta|turing|ampere|maxwell|pascal|kernel)_dgemm|dgemm", "fp64", False),
        (r"_hgemm", "fp16", False),
        (r"(volta|ampere|turing)_g?cgemm", "fp32", False),
        (r"(volta|ampere|turing)_g?zgemm", "fp64", False),
        (r"gemv|splitKreduce|dot_kernel|dgrad_(alg\d_)?engine|wgrad_alg\d_engine|gemmSN|epilogue::impl", None, False),
        (r"flip_filter|implicit_convolve_sgemm|conv_depthwise|grouped_direct|reduce_wgrad", None, False),
    )
)  # fmt: skip
_MATRIX_FAMILIES = frozenset({"gemm", "convolution", "attention"})
# Families that may use tensor cores although their names do not say so. The others only move or combine elements.
_UNKNOWN_FAMILIES = frozenset({"custom", "fused"})
_LIBRARIES = re.compile(r"at::native|cudnn::|cub::|thrust::|^cupy_|c10::|nccl|^triton_(poi|red|per)_|_fusion(_\d+)?$")
_ELEMENT_TYPES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), precision)
    for pattern, precision in (
        (
            r"\b(c10::BFloat16|__nv_bfloat16|cutlass::bfloat16_t|nv_bfloat16|bfloat16)\b|__hip_bfloat16|DF16b|Sum_bf16",
            "bf16",
        ),
        (r"\b(c10::Half|__half|cutlass::half_t|half|float16)\b|Sum_(half|f16)", "fp16"),
        (r"\b(double2?|float64|Float64)\b|_float64", "fp64"),
        (r"\b(float2?|float32|Float32)\b|_float32|_f32_|Sum_float", "fp32"),
    )
)
_TEMPLATE = re.compile(r"\bKernel2?<(?:cutlass::|cutlass__\w+::)?([A-Za-z_]\w*)")
_FUNCTOR = re.compile(
    r"(?:at::native::|<unnamed>::|\(anonymous namespace\)::|binary_internal::)"
    r"((?!vectorized|unrolled|elementwise_kernel|gpu_kernel|reduce_kernel|multi_tensor)"
    r"\w*(?:[fF]unctor|Ops|_kernel_cuda|_kernel_impl|KernelImpl|CUDAKernelImpl|masked_scale_kernel|scalar_kernel)\w*)"
)
_WRAPPERS = frozenset({"AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "UnaryFunctor"})
_GENERIC = re.compile(r"elementwise_kernel|reduce_kernel|multi_tensor_apply_kernel|^Kernel2?$")


@frozen
class KernelKind:
    """The kind of a kernel, from its name; None where the name does not contain it."""

    label: str  # a name that differs between the uses of a generic kernel
    family: str
    precision: str | None
    tensor_core: bool | None


@lru_cache(maxsize=MAX_KINDS)
def kernel_kind(name: str, demangled: str) -> KernelKind:
    """Return the kind of a kernel from its short and its full name."""
    # torch.profiler writes "(anonymous namespace)", whose parenthesis does not begin parameters.
    demangled = demangled.replace("(anonymous namespace)", "<unnamed>")
    function = _without_parameters(demangled)
    family = next((family for family, pattern in _COMPILED if pattern.search(function)), "custom")
    precision, tensor_core = _matrix_unit(demangled) if family in _MATRIX_FAMILIES else (None, None)
    is_library = tensor_core is not None or bool(_LIBRARIES.search(demangled))
    if family not in _MATRIX_FAMILIES and (is_library or family not in _UNKNOWN_FAMILIES):
        tensor_core = False
    if precision is None:
        precision = _element_type(demangled, is_library=is_library, tensor_core=tensor_core)
    return KernelKind(_label(name, demangled), family, precision, tensor_core)


def _without_parameters(demangled: str) -> str:
    """Return a function's name with its template arguments; parameter types say little about what it computes."""
    template, call = demangled.find("<"), demangled.find("(")
    if 0 <= template < call and ">(" in demangled:
        return demangled[: demangled.rindex(">(") + 1]
    return demangled[:call] if call > 0 else demangled


def _matrix_unit(demangled: str) -> tuple[str | None, bool | None]:
    for pattern, precision, tensor in _MATRIX_UNITS:
        if pattern.search(demangled):
            return precision, tensor
    return None, None


def _element_type(demangled: str, *, is_library: bool, tensor_core: bool | None) -> str | None:
    """Return the type that occurs first in a library's name, or the only type that occurs in another name.

    A float in the name of a kernel that uses tensor cores is the type that it reads or adds up in.
    """
    places = [(match.start(), precision) for kind, precision in _ELEMENT_TYPES if (match := kind.search(demangled))]
    if tensor_core:
        places = [place for place in places if place[1] != "fp32"]
    if not places or (len(places) > 1 and not is_library):
        return None
    return min(places)[1]


def _label(name: str, demangled: str) -> str:
    """Return the short name, or for a generic kernel the operation that its template arguments name."""
    if not _GENERIC.search(name):
        return name
    if name in ("Kernel", "Kernel2"):
        template = _TEMPLATE.search(demangled)
        return template[1] if template else name
    functors = _FUNCTOR.findall(demangled)
    specific = [functor for functor in functors if functor not in _WRAPPERS] or functors
    plain = name.removeprefix("vectorized_").removeprefix("unrolled_")
    return f"{plain}<{specific[0]}>" if specific else name
