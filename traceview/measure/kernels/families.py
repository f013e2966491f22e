"""What a kernel computes, from its name: family, precision and use of tensor cores (docs/definitions.md "Kernels").

Names are those of cuBLAS, cuDNN, CUTLASS, FlashAttention, PyTorch, JAX, TensorRT, vLLM, ggml, CuPy and the compilers,
from Volta to Blackwell, and of the libraries of AMD GPUs. Anything that a name does not contain is None.

All names are searched at once, by an engine without backtracking: its time grows only linearly with the length of the
names, whatever they contain.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import first_equal_rows, number_distinct
from traceview.measure.shared_work import once_per_frame
from traceview.model.catalogue import read_toml
from traceview.model.names import communicates, kernel_title, with_ascii_classes

SEARCHED_TOGETHER = 16  # patterns; a name that matches one of them is not searched further

_NAMES = read_toml(Path(__file__).with_name("families.toml"))
FAMILIES: list[tuple[str, str]] = _NAMES["families"]
# Precision and use of tensor cores, and one or two patterns.
_MATRIX_UNITS = [((precision or None, tensor_core), *patterns) for precision, tensor_core, *patterns in _NAMES["units"]]
LIBRARIES: list[tuple[str, str]] = _NAMES["libraries"]
MATRIX = ("gemm", "convolution", "attention")  # families whose kernels can use tensor cores
# Families that may use tensor cores although their names do not say so. The others only move or combine elements.
_UNKNOWN_FAMILIES = ("custom", "fused")
_UNIT = {"precision": pl.String, "tensor_core": pl.Boolean}
_FAMILY = pl.Enum(sorted({*dict(FAMILIES), "custom", "communication"}))
_LIBRARIES = r"at::native|cudnn::|cub::|thrust::|^cupy_|c10::|nccl|^triton_(poi|red|per)_|_fusion(_\d+)?$"
_ELEMENT_TYPES: dict[str, str] = _NAMES["element_types"]
WORD_ENDS = (
    (r"([a-z])([A-Z])", "$1 $2"),
    (r"([A-Z])([A-Z][a-z])", "$1 $2"),
    (r"([A-Za-z])([0-9])", "$1 $2"),
    (r"([0-9])([A-Za-z])", "$1 $2"),
    (r"[^A-Za-z0-9:]+", " "),
    (r":+", " :: "),
)
# A number at the end of a name says nothing: compilers count their kernels. No pattern above has one of three digits.
_NUMBERED = (r"_\d{3,}$", "_100")
# The first template argument of a kernel without a name, inside wrappers such as flash::enable_sm90<...>.
_UNNAMED = r"(?i)^(?:device_)?kernel2?$"
_ARGUMENT = with_ascii_classes(
    r"\b(?i:(?:device_)?kernel2?)<(?:(?:\w+::)*enable_\w+<)*((?:(?:\w+|<unnamed>)::)*[A-Za-z_]\w*)"
)
_NO_SCOPE = frozenset(("", "<unnamed>", "detail", "device", "kernel", "cuda", "impl", "internal"))
_PLAIN_TYPE = re.compile(
    r"(?:float|double|int|bool|char|short|long|unsigned|size_t|half|__half|\w*bfloat16|u?int\d+_t)\d*"
)
_FUNCTOR = with_ascii_classes(
    r"(?:at::native::|<unnamed>::|binary_internal::)"
    r"\w*(?:[fF]unctor|Ops|_kernel_cuda|_kernel_impl|KernelImpl|CUDAKernelImpl|masked_scale_kernel|scalar_kernel)\w*"
)
_NO_FUNCTOR = "^(vectorized|unrolled|elementwise_kernel|gpu_kernel|reduce_kernel|multi_tensor)"
_WRAPPERS = ("AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "UnaryFunctor")
_GENERIC = f"elementwise_kernel|reduce_kernel|multi_tensor_apply_kernel|{_UNNAMED}"


class KernelKind(NamedTuple):
    """The kind of a kernel, from its name; None where the name does not contain it."""

    label: str  # a name that differs between the uses of a generic kernel
    family: str
    precision: str | None
    tensor_core: bool | None
    library: str | None = None  # None for a kernel of the program


_TENSOR_CORE = {"tensor": True, "plain": False, "unknown": None}
_PRECISIONS = dict.fromkeys([*(precision for (precision, _), *_ in _MATRIX_UNITS if precision), *_ELEMENT_TYPES])
_STATED = re.compile(
    rf".*\[hidden (?P<family>{'|'.join({**dict(FAMILIES), 'custom': '', 'communication': ''})}) "
    rf"(?P<precision>{'|'.join(_PRECISIONS)}|-) (?P<unit>{'|'.join(_TENSOR_CORE)}) "
    rf"(?P<library>{'|'.join(map(re.escape, dict(LIBRARIES)))}|-): (?P<label>.*)\]",
    re.DOTALL,
)


def kind_words(kind: KernelKind) -> str:
    """Return words that state a kind at the end of a full name whose own words are hidden (captures/redact)."""
    unit = next(word for word, uses in _TENSOR_CORE.items() if uses is kind.tensor_core)
    return f"[hidden {kind.family} {kind.precision or '-'} {unit} {kind.library or '-'}: {kind.label}]"


def stated_kind(full: str) -> KernelKind | None:
    """Return the kind that a full name states with kind_words(); None if it states none."""
    match = _STATED.fullmatch(full) if full.endswith("]") else None
    if match is None:
        return None
    precision, library = (None if match[name] == "-" else match[name] for name in ("precision", "library"))
    return KernelKind(match["label"], match["family"], precision, _TENSOR_CORE[match["unit"]], library)


@once_per_frame
def shape_kinds(shapes: pl.DataFrame) -> pl.DataFrame:
    """Return the kinds of Trace.shapes, from their names; the row of other operations has the label "".

    Columns are the fields of KernelKind; `family` is an Enum. Names that are equal, or differ by the number at their
    end, are searched once.
    """
    names = shapes.select(pl.col("name", "demangled").fill_null(""))
    folded = names.select(pl.all().str.replace(*_NUMBERED))
    first, number = number_distinct(first_equal_rows(folded.hash_rows().to_numpy()))
    kinds = _search(folded[first])[number]
    return kinds.with_columns(pl.coalesce("label", _labels(*names)))


def kernel_kind(name: str, demangled: str) -> KernelKind:
    """Return the kind of one kernel from its short and its full name."""
    return KernelKind(*shape_kinds(pl.DataFrame({"name": [name], "demangled": [demangled]})).row(0))


def _search(names: pl.DataFrame) -> pl.DataFrame:
    """Return the kinds of names; their label is null where the name does not state its kind."""
    full = _full_names(names["demangled"])
    function = _without_parameters(full)
    searched = [(name, rf" (?:{phrases}) ") for name, phrases in FAMILIES]
    family = np.array([*(name for name, _ in FAMILIES), "custom"])[_first_match(_words(function), searched)]
    family[communicates(names["name"], full).to_numpy()] = "communication"
    unit = np.full(len(full), len(_MATRIX_UNITS))
    matrix = np.isin(family, MATRIX)
    unit[matrix] = _first_match(full.filter(pl.Series(matrix)), _MATRIX_UNITS)
    units = pl.DataFrame([*(row[0] for row in _MATRIX_UNITS), (None, None)], schema=_UNIT, orient="row")
    libraries = pl.Series("library", [*(name for name, _ in LIBRARIES), None], pl.String)[_first_match(full, LIBRARIES)]
    families = pl.Series("family", family).cast(_FAMILY)
    columns = (pl.lit(None, pl.String).alias("label"), families, full.alias("full"), libraries)
    kinds = units[unit].with_columns(*columns).with_columns(**_tensor_core_and_type()).select(KernelKind._fields)
    stated = [(row, kind) for row in full.str.ends_with("]").arg_true().to_list() if (kind := stated_kind(full[row]))]
    if not stated:
        return kinds
    rows = pl.DataFrame([(row, *kind) for row, kind in stated], {"row": pl.UInt32, **kinds.schema}, orient="row")
    return kinds.with_row_index("row").update(rows, on="row", include_nulls=True).drop("row")


def _full_names(demangled: pl.Series) -> pl.Series:
    # torch.profiler writes "(anonymous namespace)", whose parenthesis does not begin parameters.
    return demangled.str.replace_all("(anonymous namespace)", "<unnamed>", literal=True)


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
        text = text.str.replace_all(with_ascii_classes(rf"(?:{pattern})\w*(?:{not_before})"), " ")
    return text.str.contains(with_ascii_classes(pattern))


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
    for pattern, spaced in WORD_ENDS:
        words = words.str.replace_all(pattern, spaced)
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


def _labels(names: pl.Series, demangled: pl.Series) -> pl.Series:
    """Return the short names; for generic kernels the functions that their template arguments name."""
    labels = pl.DataFrame({"label": names, "full": _full_names(demangled)}).with_row_index("row")
    generic = labels.filter(pl.col("label").str.contains(_GENERIC))
    unnamed = pl.col("label").str.contains(_UNNAMED)
    function = pl.col("functor").str.extract(r"(\w+)$")
    functors = (
        generic.filter(~unnamed)
        .select("row", functor=pl.col("full").str.extract_all(_FUNCTOR))
        .explode("functor")
        .select("row", functor=function)
        .filter(~pl.col("functor").str.contains(_NO_FUNCTOR))
        .sort(pl.col("functor").is_in(_WRAPPERS), maintain_order=True)
        .unique("row", keep="first", maintain_order=True)
    )
    plain = pl.col("label").str.strip_prefix("vectorized_").str.strip_prefix("unrolled_")
    argument = pl.when(unnamed).then(pl.col("full").str.extract(_ARGUMENT))
    specific = generic.join(functors, on="row", how="left").select(
        "row", argument=argument, specific=pl.format("{}<{}>", plain, "functor")
    )
    named = labels.join(specific, on="row", how="left", maintain_order="left")
    titles = named.select(pl.coalesce("specific", "label")).to_series().alias("label")
    rows = (named["argument"].str.len_bytes() > 0) | (named["specific"].is_null() & titles.str.starts_with("Cijk"))
    rows = rows.fill_null(value=False).arg_true()  # few names need Python
    texts = [_python_label(*each) for each in named.select("label", "argument")[rows].iter_rows()]
    return titles.scatter(rows, texts) if texts else titles


@lru_cache(1 << 12)
def _python_label(label: str, argument: str | None) -> str:
    return _argument_label(label, argument) if argument else kernel_title(label)


def _argument_label(name: str, argument: str) -> str:
    """Return the label of a kernel from its first template argument, with the namespace that says more than it.

    `moe::grouped_gemm::GemmKernel` gives "grouped_gemm GemmKernel", `flash::FlashAttnFwdSm90` the last word.
    """
    *around, last = argument.split("::")
    if not around and _PLAIN_TYPE.fullmatch(last):
        return f"{name}<{last}>"
    scope = next((word for word in around[1:] if word not in _NO_SCOPE and word.lower() not in last.lower()), "")
    return f"{scope} {last}".lstrip()
