"""What a kernel computes, from its name: family, precision and use of tensor cores (docs/definitions.md "Kernels").

Names are those of cuBLAS, cuDNN, CUTLASS, FlashAttention, PyTorch, JAX, TensorRT, vLLM, ggml, CuPy and the compilers,
from Volta to Blackwell, and of the libraries of AMD GPUs. Anything that a name does not contain is None.

All names are searched at once, by an engine without backtracking: its time grows only linearly with the length of the
names, whatever they contain.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.measure.shared_work import once_per_frame
from traceview.model.catalogue import read_toml
from traceview.model.names import communicates, with_ascii_classes

MAX_KEPT = 1 << 14  # names whose kinds are kept
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
_FIELDS = ("label", "family", "precision", "tensor_core", "library")
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


_kept: dict[tuple[str, str], KernelKind] = {}
_searching = Lock()  # tables are measured in several threads


@once_per_frame
def shape_kinds(shapes: pl.DataFrame) -> list[KernelKind]:
    """Return the kinds of Trace.shapes, from their names; the row of other operations has the label "".

    A name is searched once, because tables, findings and predictions ask for the same kinds.
    """
    names = shapes.select(pl.col("name", "demangled").fill_null(""))
    distinct = names.unique(maintain_order=True).rows()
    with _searching:
        new = [row for row in distinct if row not in _kept]
        if len(_kept) + len(new) > MAX_KEPT:
            _kept.clear()
            new = distinct
        if new:
            _kept.update(zip(new, _search(pl.DataFrame(new, schema=names.schema, orient="row")), strict=True))
        return [_kept[row] for row in names.iter_rows()]


def kernel_kind(name: str, demangled: str) -> KernelKind:
    """Return the kind of one kernel from its short and its full name."""
    return shape_kinds(pl.DataFrame({"name": [name], "demangled": [demangled]}))[0]


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
    kinds = units[unit].with_columns(*columns).with_columns(**_tensor_core_and_type()).select(_FIELDS)
    return [stated_kind(text) or KernelKind(*row) for text, row in zip(full, kinds.iter_rows(), strict=True)]


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
