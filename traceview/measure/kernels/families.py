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

from traceview.model.names import communicates

MAX_KEPT = 1 << 14  # names whose kinds are kept
SEARCHED_TOGETHER = 16  # patterns; a name that matches one of them is not searched further

_KINDS_OF_SUM = r"kernel|parallel|vec(tor)?s?|arrays?|gpu|cuda|[fbi]|\d+"
# Phrases of words, as _words splits names into them: the first row with a phrase that occurs decides, so that specific
# ones stand before general ones. A name is between "<" and ">", "::" ends a namespace.
# A word is whole: `fft` is not in `draft`.
FAMILIES: tuple[tuple[str, str], ...] = (
    ("indexing", r"fbgemm gpu|finalize matmul scatter|bounds check indices|moe :: dev :: (routing|finalize)"),
    ("indexing", r"kv indices"),
    ("indexing", r"split embedding( \w+)*"),
    ("copy", r"reshape and cache|store kvcache|recat copy|multi tensor apply kernel( \S+)* copy functor"),
    ("elementwise", r"rotary embedding|quantize with|fp 8 quant|act and mul|masked fill|arange"),
    ("attention", r"flash (fwd|bwd|[fb]prop|attn|attention|decod\w+|mla)|flash ::|pytorch flash|fmha|sdpa"),
    ("attention", r"flashinfer|mha"),
    ("attention", r"(multi head |self |cross )?attention|attn|(batch|single) (prefill|decode) with"),
    ("attention", r"compute dot do o"),
    ("attention", r"convert dq to 16 bits|compute dq"),
    ("optimizer", r"fused (optimizer|adamw?|sgd)|multi tensor (apply|adam|sgd|lamb)|adamw?|sgd|lamb|adagrad"),
    ("optimizer", r"rmsprop"),
    ("fft", r"(c[uz]?|[ri]|hip|roc|vk)?fft\w{0,5}|dft|r 2 c|c 2 r"),
    ("convolution", r"conv(olve|olution|olution al)?|[fdw](prop|grad)|winograd|scudnn|(cask )?cudnn (infer|train)"),
    ("convolution", r"cask cudnn"),
    ("convolution", r"flip filter|region transform abc|igemm (fwd|bwd|wrw)|xdlops bwd weight|depthwise"),
    ("gemm", r"[a-z]{0,3}(gemm|gemv)[a-z]{0,2}|nvjet|split kreduce|mul matrix|< cijk|bmm|mul mat|epilogue :: impl"),
    ("gemm", r"[hw]?mma|wgmma"),
    ("gemm", r"matmul|mat mul|matmult|mat mult|matrix (mul\w*|mult\w*|product)|cublas|dot kernel|reduce 1 block"),
    ("gemm", r"kernel( 2)? cutlass"),
    ("gemm", r"bitsandbytes|marlin|gptq|awq|deep gemm|ampere s? \d+|sptrsv|syrk|trsm|[sdcz]trs[mv]"),
    ("normalization", r"(batch|layer|rms|group|instance)( |)norm\w*|bn (fw|bw)|rowwise moments"),
    ("normalization", r"gamma beta backward|renorm"),
    ("softmax", r"soft(max| max)|cross entropy|nll (loss|criterion)|xent"),
    ("sort_scan", r"(radix |merge |bitonic |sample |quick )?sort(ed|ing)?|bitonic|sbtopk|top( |)k|searchsorted"),
    ("sort_scan", r"unique( by key)?"),
    ("sort_scan", r"device (scan|select|partition|histogram|run length|compact|reduce by key)"),
    ("sort_scan", r"(wrapped|inclusive|exclusive|selective) scan"),
    ("sort_scan", r"scan( \d+)? (kernel|init|step|block|in block|sums?|lookback)|(prefix|block|segmented) scan"),
    ("sort_scan", r"scan >|cumsum|prefix( |)sum|histogram\w*"),
    ("indexing", r"embed(dings?)?|index (elementwise|func|select|put|copy|add|fill)|index kernel impl"),
    ("indexing", r"linearize index|indexing"),
    ("indexing", r"gather|get rows|scatter|compute grad weight|krn partial \w+|sum and scatter"),
    ("random", r"(fused )?dropout|philox|curand|distribution elementwise|rng|bernoulli|threefry"),
    ("random", r"(uniform|normal) and transform"),
    ("random", r"(setup|init\w*|generate) rand(om)?"),
    ("random", r"rand(om)? (setup|init\w*|states?|uniform|normal|numbers?|kernel|>)"),
    ("random", r"curand \w+|gen sequenced|generate seed"),
    ("layout", r"nchw (to|2) nhwc|nhwc (to|2) nchw|\w*transpos(e|ed|ition)|(matrix|mat) trans|permut(e|ation)"),
    ("layout", r"im 2 col|col 2 im"),
    ("layout", r"tensor transform|layout transform|generic reformat"),
    ("copy", r"cat array( \w+)*|direct copy|copy( \w+)? kernel|copy device|fill functor|fill kernel|memset|memcpy"),
    ("copy", r"concat\w*|cuda fill"),
    ("copy", r"< wrapped (convert|copy|broadcast|slice)|cupy (copy|fill)|pad kernel|replication pad|< cpy|< copy"),
    ("copy", r"cuda functor copy|\w*float\w* 16 copy"),
    ("pooling", r"(max|avg|average)( |)pool(ing)?|pool(ing)?|adaptive average"),
    ("fused", r"< triton( (poi|red|per|tem|for))?|fusion|< fused( \w+)* \d+ >|nvfuser|cuda code gen"),
    ("fused", r"kernel cuda \d+"),
    ("fused", r"myl|< wrapped|generated native pointwise"),
    ("reduction", r"reduc(e|er|ed|tion)|welford|< sum|:: sum|sum (kernel|>)|arg( |)(max|min)|l 2 norm|lpnorm"),
    ("reduction", r"norm kernel|gpu red"),
    ("reduction", r"cupy (max|min|sum|mean)"),
    ("elementwise", r"element( |)wise|elem( |)wise|pointwise|cupy|launch clamp|scale packed tensor|op tensor"),
    ("elementwise", r"activation|masked scale"),
    ("elementwise", r""),
    ("elementwise", rf"(<|::)( k| vec(tor)?| matrix)* (add|mul|sub)( ({_KINDS_OF_SUM}))* (>|::)"),
    ("elementwise", r"(<|::)( k)? (relu|gelu|silu|tanh|sigmoid|swiglu|[sd]?axpy|scal)"),
    ("elementwise", r"foreach|act|rotary|rope|(de)?quant(ize)?|bin bcast|unary op kernel|sub tensor op|triu|tril"),
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
_FIELDS = ("label", "family", "precision", "tensor_core", "library")
# Whose kernels they are, by their full names; the first pattern that occurs decides. Others are the program's own.
LIBRARIES: tuple[tuple[str, str], ...] = (
    ("FlashAttention", r"\bflash::|pytorch_flash|flash_(fwd|bwd)\w*kernel<"),
    ("ATen", r"^fmha_cutlass[FB]_"),
    ("ATen", r"\bat::|\bc10::\w+::|\bfbgemm_gpu::|split_embedding_|\bcunn_|softmax_warp_(forward|backward)"),
    ("TensorFlow", r"\btensorflow::|\bEigen::"),
    ("vLLM", r"\bvllm::"),
    ("TensorRT", r"genericReformat|\bnvinfer1::|tensorrt_llm::|^fmhaSm|_trt(_v\d+)?$|^trt_"),
    ("FlashInfer", r"\bflashinfer::"),
    ("cuDNN", r"cudnn|nchwToNhwcKernel|nhwcToNchwKernel|fft[12]d_[cr]2[cr]_|(im|ex)plicit_convolve_sgemm"),
    ("cuDNN", r"^void (flip_filter|[dw]grad)"),
    ("cuBLAS", r"cublas|^nvjet|(maxwell|pascal|volta|turing|ampere)_\w*gemm|sm\d+_xmma_gemm|gemv2[NT]_|gemmSN_"),
    ("cuBLAS", r"splitKreduce"),
    ("CUTLASS", r"\bcutlass::Kernel|cutlass::device_kernel|cutlass_\d+_"),
    ("cuFFT", r"\b(regular|vector|composite_\w+|multi_bluestein)_fft|^void DFT_"),
    ("cuSPARSE", r"\bcusparse::"),
    ("MAGMA", r"\bmagma_"),
    ("CUB", r"\bcub::|\bthrust::|rocprim::"),
    ("cuRAND", r"^void (gen_sequenced|generate_seed_pseudo)"),
    ("rocBLAS", r"^Cijk_"),
    ("MIOpen", r"igemm_\w+_gtcx|^_ZN2ck|^_ZN7ck_tile|\bck(_tile)?::|^SubTensorOp|MIOpen"),
    ("CuPy", r"^cupy_"),
    ("torch.compile", r"^triton_(poi|red|per|tem|for)_|^triton__0d"),
    ("XLA", r"^(\w+_)?fusion(_\d+)?$|^wrapped_"),
)  # fmt: skip
_LIBRARIES = r"at::native|cudnn::|cub::|thrust::|^cupy_|c10::|nccl|^triton_(poi|red|per)_|_fusion(_\d+)?$"
_ELEMENT_TYPES = {
    "bf16": r"\b(c10::BFloat16|__nv_bfloat16|cutlass::bfloat16_t|nv_bfloat16|bfloat16)\b|__hip_bfloat16|DF16b|Sum_bf16",
    "fp16": r"\b(c10::Half|__half|cutlass::half_t|half|float16)\b|Sum_(half|f16)",
    "fp32": r"\b(float2?|float32|Float32)\b|_float32|_f32_|Sum_float",
    "fp64": r"\b(double2?|float64|Float64)\b|_float64",
}
WORD_ENDS = (
    (r"([a-z])([A-Z])", "$1 $2"),
    (r"([A-Z])([A-Z][a-z])", "$1 $2"),
    (r"([A-Za-z])([0-9])", "$1 $2"),
    (r"([0-9])([A-Za-z])", "$1 $2"),
    (r"[^A-Za-z0-9:]+", " "),
    (r":+", " :: "),
)
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
    library: str | None = None  # None for a kernel of the program


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
    function = _without_parameters(full)
    searched = [(name, rf" (?:{phrases}) ") for name, phrases in FAMILIES]
    family = np.array([*(name for name, _ in FAMILIES), "custom"])[_first_match(_words(function), searched)]
    family[communicates(names["name"], full).to_numpy()] = "communication"
    unit = np.full(len(full), len(_MATRIX_UNITS))
    matrix = np.isin(family, MATRIX)
    unit[matrix] = _first_match(full.filter(pl.Series(matrix)), _MATRIX_UNITS)
    units = pl.DataFrame([*(row[0] for row in _MATRIX_UNITS), (None, None)], schema=_UNIT, orient="row")
    libraries = pl.Series("library", [*(name for name, _ in LIBRARIES), None], pl.String)[_first_match(full, LIBRARIES)]
    columns = (_labels(names["name"], full), pl.Series("family", family), full.alias("full"), libraries)
    kinds = units[unit].with_columns(*columns)
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
        text = text.str.replace_all(_ascii(rf"(?:{pattern})\w*(?:{not_before})"), " ")
    return text.str.contains(_ascii(pattern))


def _ascii(pattern: str) -> str:
    """Return a pattern whose classes hold ASCII alone: those of Unicode take most of the time of a search."""
    for sign, own in ((r"\w", "[0-9A-Za-z_]"), (r"\d", "[0-9]"), (r"\b", r"(?-u:\b)")):
        pattern = pattern.replace(sign, own)
    return pattern


def _without_parameters(full: pl.Series) -> pl.Series:
    """Return functions' names with template arguments; parameter types say little about what a function computes."""
    template, call = full.str.find("<", literal=True), full.str.find("(", literal=True)
    function = pl.when(template < call).then(full.str.extract(r"^((?s:.*)>)\("))
    return pl.select(pl.coalesce(function, full.str.extract(r"^([^(]+)"), full)).to_series()


def _words(functions: pl.Series) -> pl.Series:
    """Return the words of names in lower case, each between spaces, with "::" behind those of a namespace.

    Words end where letters become digits, where a capital begins, and at signs: `conv2dKernel<Sum>` has conv, 2, d,
    kernel and sum.
    """
    words = functions.str.strip_prefix("void ").str.replace_all("<unnamed>::", "", literal=True)
    for pattern, parts in WORD_ENDS:
        words = words.str.replace_all(pattern, parts)
    return (" < " + words.str.to_lowercase() + " > ").str.replace_all(r"\s+", " ")


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
