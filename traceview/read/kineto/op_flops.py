"""Floating-point operations of PyTorch's matrix products, convolutions and attentions, from the shapes of their inputs.

A multiplication and its addition count as two operations. Attention counts the whole matrix of scores, with a causal
mask too, and its backward pass counts the scores that it computes again: these are the rules of PyTorch's
FlopCounterMode (torch/utils/flop_counter.py), which `instrument` uses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod

MAX_FLOPS = 1 << 62
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
