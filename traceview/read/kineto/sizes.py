"""The sizes in a trace: operations of ops with known shapes, messages of collectives, and allocated memory.

torch.profiler writes shapes with record_shapes=True, and the arguments of a collective always: at its kernel, or in
older versions at the op `record_param_comms` with the kernel's external id alone. With profile_memory=True it writes an
event for each tensor that its allocator gives or takes back.

The floating-point operations of matrix products, convolutions and attentions follow from the shapes of their inputs. A
multiplication and its addition count as two operations. Attention counts the whole matrix of scores, with a causal
mask too, and its backward pass counts the scores that it computes again: these are the rules of PyTorch's
FlopCounterMode (torch/utils/flop_counter.py), which `instrument` uses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import polars as pl

from traceview.read import raw
from traceview.read.kineto.pieces import NAMES, decode_quoted, nanoseconds
from traceview.read.source import MAX_NAME

MAX_FLOPS = 1 << 62
ELEMENT_TYPES: Mapping[str, tuple[str, int]] = {name: (text, size) for name, text, size in NAMES["types"]}
ADDS_TO_ITS_FIRST = ("aten::addmm", "aten::baddbmm", "aten::_addmm_activation", "aten::addmv")  # beta * C + A @ B
MAX_SIGNATURES = 1 << 14
Sizes = Sequence[Sequence[int]]
Inputs = Sequence[str]


def _product(sizes: Sequence[int], other: Sequence[int]) -> int:
    """Return the operations of a product of two matrices, of two batches of them, or of a matrix with a batch."""
    if not 2 <= len(sizes) <= len(other) or sizes[-1] != other[-2]:
        raise ValueError("not a matrix product")
    return 2 * prod(sizes) * other[-1]


def _vector_product(matrix: Sequence[int], vector: Sequence[int]) -> int:
    if len(matrix) != 2 or len(vector) != 1:
        raise ValueError("not a product with a vector")
    return 2 * prod(matrix)


def _linear(sizes: Sequence[int], weight: Sequence[int]) -> int:
    if sizes[-1] != weight[-1]:
        raise ValueError("not a linear layer")
    return 2 * prod(sizes) * prod(weight[:-1])


def _convolution(sizes: Sizes, inputs: Inputs) -> int:
    """Count aten::convolution: input, weight, bias, stride, padding, dilation, transposed, output padding, groups."""
    image, weight = sizes[0], sizes[1]
    if inputs[6] == "True":
        return _convolution_at(image[2:], image, weight)
    dimensions = range(2, len(image))
    stride, padding, dilation = (_per_dimension(text, len(dimensions)) for text in inputs[3:6])
    output = [
        (image[at] + 2 * padding[at - 2] - dilation[at - 2] * (weight[at] - 1) - 1) // stride[at - 2] + 1
        for at in dimensions
    ]
    return _convolution_at(output, image, weight)


def _convolution_backward(sizes: Sizes, inputs: Inputs) -> int:
    """Count aten::convolution_backward: output gradient, input, weight, ..., transposed (7), ..., output mask (10).

    The gradients of input and weight take as many operations as the forward pass each.
    """
    gradient, image, weight = sizes[:3]
    wanted: list[bool] = json.loads(inputs[10].lower())[:2]
    return sum(wanted) * _convolution_at(image[2:] if inputs[7] == "True" else gradient[2:], image, weight)


def _convolution_at(places: Sequence[int], image: Sequence[int], weight: Sequence[int]) -> int:
    """Count a filter at each of the places; the weight's shape contains the division into groups."""
    if len(image) != len(weight) or len(image) < 3:
        raise ValueError("not a convolution")
    return 2 * image[0] * prod(places) * prod(weight)


def _per_dimension(text: str, count: int) -> list[int]:
    values: list[int] = json.loads(text)
    return values * count if len(values) == 1 else values


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int], *, heads: int, backward: bool) -> int:
    """Count attention; `heads` is the dimension of the heads, and the other one of 1 and 2 is the sequence."""
    if not len(query) == len(key) == len(value) == 4:
        raise ValueError("sequences of different lengths are not counted")
    pairs = query[0] * query[heads] * query[3 - heads] * key[3 - heads]
    products = 3 * query[3] + 2 * value[3] if backward else query[3] + value[3]
    return 2 * pairs * products


def _attention_op(heads: int, *, backward: bool, lengths: int | None = None) -> Callable[[Sizes, Inputs], int]:
    """Return the function for an op whose first tensors are query, key and value, after the output's gradient.

    `lengths` is the input with the bounds of sequences of different lengths, if the op has one.
    """

    def count(sizes: Sizes, _inputs: Inputs) -> int:
        if lengths is not None and sizes[lengths]:
            raise ValueError("sequences of different lengths are not counted")
        query, key, value = sizes[1:4] if backward else sizes[:3]
        return _attention(query, key, value, heads=heads, backward=backward)

    return count


COUNTS: dict[str, Callable[[Sizes, Inputs], int]] = {
    **dict.fromkeys(
        ("aten::mm", "aten::bmm", "aten::_scaled_mm", "aten::_int_mm", "aten::_grouped_mm", "aten::_scaled_grouped_mm"),
        lambda sizes, _: _product(sizes[0], sizes[1]),
    ),
    **dict.fromkeys(
        ("aten::addmm", "aten::baddbmm", "aten::_addmm_activation"), lambda sizes, _: _product(sizes[1], sizes[2])
    ),
    "aten::mv": lambda sizes, _: _vector_product(sizes[0], sizes[1]),
    "aten::addmv": lambda sizes, _: _vector_product(sizes[1], sizes[2]),
    "aten::linear": lambda sizes, _: _linear(sizes[0], sizes[1]),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    **{
        f"aten::_scaled_dot_product_{kind}_attention{suffix}": _attention_op(1, backward=bool(suffix))
        for kind in ("flash", "efficient", "cudnn")
        for suffix in ("", "_backward")
    },
    "aten::_flash_attention_forward": _attention_op(2, backward=False, lengths=3),
    "aten::_flash_attention_backward": _attention_op(2, backward=True, lengths=6),
    "aten::_efficient_attention_forward": _attention_op(2, backward=False, lengths=4),
    "aten::_efficient_attention_backward": _attention_op(2, backward=True, lengths=6),
    "flash_attn::_flash_attn_forward": _attention_op(2, backward=False),
    "flash_attn::_flash_attn_backward": _attention_op(2, backward=True),
}


@lru_cache(maxsize=MAX_SIGNATURES)
def op_flops(name: str, sizes: str, inputs: str) -> int | None:
    """Return the operations of an op; None if they do not follow from its inputs.

    `sizes` and `inputs` are JSON: `Input Dims` and `Concrete Inputs` of the trace, which may lack the second ("").
    """
    count = COUNTS.get(name)
    try:
        counted = count and count(json.loads(sizes), json.loads(inputs or "[]"))
    except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError):
        return None
    return counted if counted is not None and 0 < counted < MAX_FLOPS else None


class OpWork(NamedTuple):
    """The work of an op: its operations, the sizes of what it multiplies, and the bytes that it reads and writes once.

    `shape` is text such as `4096x2048 * 2048x8192 fp32`. `bytes` is None if a type or the size of the output is
    unknown; the output has the type of what is multiplied.
    """

    flops: int
    shape: str
    bytes: int | None


@lru_cache(maxsize=MAX_SIGNATURES)
def op_work(name: str, sizes: str, inputs: str, types: str) -> OpWork | None:
    """Return the work of an op; None if its operations are unknown. `types` is `Input type` of the trace, or ""."""
    flops = op_flops(name, sizes, inputs)
    if flops is None:
        return None
    dimensions: list[list[int]] = json.loads(sizes)
    named = [ELEMENT_TYPES.get(each, ("", 0)) for each in _texts(types)]
    named += [("", 0)] * (len(dimensions) - len(named))
    first = int(name in ADDS_TO_ITS_FIRST or name.endswith("_backward"))
    product = " * ".join("x".join(map(str, size)) for size in dimensions[first : first + 2])
    elements = list(dict.fromkeys(text for text, _ in named[first : first + 2] if text))
    tensors = [(prod(size), width) for size, (_, width) in zip(dimensions, named, strict=False) if size]
    written = None if inputs and _is_transposed(name, inputs) else _output_size(name, dimensions[first:], flops)
    known = written is not None and all(width for _, width in tensors)
    size = sum(count * width for count, width in tensors) + (written or 0) * named[first][1]
    shape = f"{product[:MAX_NAME]} {' * '.join(elements)}".rstrip()
    return OpWork(flops, shape, size if known and size < MAX_FLOPS else None)


def _texts(text: str) -> list[str]:
    """Return the texts of a JSON list; none if it is something else."""
    try:
        values = json.loads(text or "[]")
    except ValueError:
        return []
    return [value if isinstance(value, str) else "" for value in values]


def _is_transposed(name: str, inputs: str) -> bool:
    return name == "aten::convolution" and _texts(inputs)[6:7] == ["True"]


def _output_size(name: str, operands: Sizes, flops: int) -> int:
    """Return the number of values that an op writes; `operands` begin with what it multiplies."""
    if name.endswith("_backward"):
        return sum(map(prod, operands[: 3 if "attention" in name or "attn" in name else 2]))
    if "attention" in name or "attn" in name:
        return prod(operands[0][:-1]) * operands[2][-1]
    return flops // (2 * (prod(operands[1][1:]) if name == "aten::convolution" else operands[0][-1]))


MATH, MESSAGE, MEMORY = "math", "message", "memory"
SHAPES = '"Input Dims"'
COUNTED = rf'"name"\s*:\s*"(?:{"|".join(COUNTS)})"'
# A list of lists of sizes, without lists of tensors; and a list of texts, which may contain brackets.
INPUT_SIZES = r'"Input Dims"\s*:\s*(\[(?:\s*\[[0-9,\s]*\]\s*,?)*\s*\])'
INPUT_TYPES = r'"Input type"\s*:\s*(\[(?:\s*"(?:[^"\\]|\\.)*"\s*,?)*\s*\])'
INPUT_VALUES = r'"Concrete Inputs"\s*:\s*(\[(?:\s*"(?:[^"\\]|\\.)*"\s*,?)*\s*\])'
ARGUMENTS = r'(?s),\s*"args"\s*:\s*\{.*$'
OP_SCHEMA = pl.Struct(dict.fromkeys(("ph", "name", "pid", "tid", "ts", "dur"), pl.String))

COLLECTIVE = "Collective name|nccl|Nccl"
MESSAGE_NUMBERS: Mapping[str, str] = NAMES["message"]
MESSAGE_TEXTS = ("Collective name", "Process Group Name", "Process Group Description", "dtype")
MESSAGE_SCHEMA = pl.Struct(
    dict.fromkeys(("ph", "cat", "pid", "tid"), pl.String)
    | {"args": pl.Struct(dict.fromkeys((*MESSAGE_NUMBERS, *MESSAGE_TEXTS), pl.String))}
)
KERNEL_CATEGORIES = ("kernel", "Kernel")
UNDEFINED = ("undefined", "")  # descriptions that torch writes for a group without one
ELEMENT_ROWS = {torch: row for row, (torch, _, _) in enumerate(raw.ELEMENTS)}
ALLOCATION = '"[memory]"'
GPU_DEVICE = 1  # DeviceType of c10
MEMORY_NUMBERS: Mapping[str, str] = NAMES["allocation"]
MEMORY_SCHEMA = pl.Struct(
    dict.fromkeys(("pid", "tid", "ts"), pl.String)
    | {"args": pl.Struct(dict.fromkeys((*MEMORY_NUMBERS, "Device Type"), pl.String))}
)
MEMORY_COLUMNS = ("pid", "tid", "start", *MEMORY_NUMBERS.values())
MATH_COLUMNS = ("pid", "tid", "start", "end", "name", "label", "flops", "bytes")
MESSAGE_COLUMNS = ("pid", "tid", "name", "label", *MESSAGE_NUMBERS.values(), "dtype", "is_kernel")


def sized_events(events: pl.Series) -> list[pl.DataFrame]:
    """Return frames of the ops with known operations, of the collectives and of the allocations among events."""
    frames = [
        _math_events(events.filter(events.str.contains(SHAPES, literal=True))),
        _messages(events.filter(events.str.contains(COLLECTIVE))),
        _allocations(events.filter(events.str.contains(ALLOCATION, literal=True))),
    ]
    return [frame for frame in frames if frame is not None]


def _math_events(events: pl.Series) -> pl.DataFrame | None:
    events = events.filter(events.str.contains(COUNTED)) if len(events) else events
    if not len(events):
        return None
    decoded = decode_quoted(events.str.replace(ARGUMENTS, "}"), OP_SCHEMA)
    if decoded["ts"].has_nulls():  # the arguments are not the last field
        decoded = decode_quoted(events, OP_SCHEMA)
    decoded = decoded.with_columns(
        events.str.extract(INPUT_SIZES).fill_null("").alias("sizes"),
        events.str.extract(INPUT_VALUES).fill_null("").alias("inputs"),
        events.str.extract(INPUT_TYPES).fill_null("").alias("types"),
    )
    signature = ("name", "sizes", "inputs", "types")
    distinct = decoded.select(signature).unique(maintain_order=True)
    works = [op_work(*row) or (None, None, None) for row in distinct.iter_rows()]
    work = pl.DataFrame(works, schema={"flops": pl.Int64, "label": pl.String, "bytes": pl.Int64}, orient="row")
    counted = pl.concat([distinct, work], how="horizontal")
    return (
        decoded.join(counted, on=signature, how="left", maintain_order="left")
        .filter(pl.col("flops").is_not_null(), pl.col("ph") == "X")
        .select(
            pl.lit(MATH).alias("sort"),
            "name",
            *(pl.col(name).cast(pl.Int64, strict=False) for name in ("pid", "tid")),
            nanoseconds(pl.col("ts")).alias("start"),
            nanoseconds(pl.col("dur")).alias("length"),
            *("label", "flops", "bytes"),
        )
    )


def _messages(events: pl.Series) -> pl.DataFrame | None:
    if not len(events):
        return None
    decoded = decode_quoted(events, MESSAGE_SCHEMA)
    args = pl.col("args").struct
    name, description = (
        args.field(f"Process Group {part}").str.slice(0, MAX_NAME // 2).fill_null("")
        for part in ("Name", "Description")
    )
    known = ~description.is_in(UNDEFINED)
    group = pl.when(known & (name != "")).then(description + " (" + name + ")").when(known).then(description)
    return decoded.filter(pl.col("ph") == "X").select(
        pl.lit(MESSAGE).alias("sort"),
        args.field("Collective name").str.slice(0, MAX_NAME + 1).alias("name"),
        group.otherwise(name).alias("label"),
        *(pl.col(name).cast(pl.Int64, strict=False) for name in ("pid", "tid")),
        *(args.field(source).cast(pl.Int64, strict=False).alias(column) for source, column in MESSAGE_NUMBERS.items()),
        args.field("dtype").replace_strict(ELEMENT_ROWS, default=None, return_dtype=pl.Int64).alias("dtype"),
        pl.col("cat").is_in(KERNEL_CATEGORIES).cast(pl.Int64).alias("is_kernel"),
    )


def _allocations(events: pl.Series) -> pl.DataFrame | None:
    if not len(events):
        return None
    args = pl.col("args").struct
    numbers = {column: args.field(source).cast(pl.Int64, strict=False) for source, column in MEMORY_NUMBERS.items()}
    return (
        decode_quoted(events, MEMORY_SCHEMA)
        .filter(args.field("Device Type").cast(pl.Int64, strict=False) == GPU_DEVICE)
        .select(
            pl.lit(MEMORY).alias("sort"),
            *(pl.col(name).cast(pl.Int64, strict=False) for name in ("pid", "tid")),
            nanoseconds(pl.col("ts")).alias("start"),
            pl.lit(0, pl.Int64).alias("length"),
            **numbers,
        )
    )
