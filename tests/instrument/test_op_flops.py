"""Operations of ops against PyTorch's own counter, on ops that torch.profiler records on a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F  # noqa: N812
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

pytest.importorskip("polars")

import polars as pl

from traceview.read import raw
from traceview.read.formats import read_capture
from traceview.read.kineto.sizes import COUNTS, op_flops


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


PROGRAMS: dict[str, Callable[[], torch.Tensor]] = {
    "mm": lambda: random(5, 7) @ random(7, 3),
    "addmm": lambda: torch.addmm(random(3), random(5, 7), random(7, 3)),
    "bmm": lambda: torch.bmm(random(4, 5, 7), random(4, 7, 3)),
    "baddbmm": lambda: torch.baddbmm(random(4, 5, 3), random(4, 5, 7), random(4, 7, 3)),
    "linear": lambda: F.linear(random(2, 4, 6), random(5, 6), random(5)),
    "conv1d": lambda: F.conv1d(random(2, 3, 20), random(4, 3, 5), stride=2, padding=1),
    "conv2d": lambda: F.conv2d(random(2, 3, 9, 11), random(4, 3, 3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
    "conv3d": lambda: F.conv3d(random(1, 2, 6, 7, 8), random(3, 2, 2, 3, 1)),
    "transposed": lambda: F.conv_transpose2d(random(2, 3, 5, 6), random(3, 4, 3, 3), stride=2, output_padding=1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_counts_equal_those_of_pytorch(name: str, tmp_path: Path) -> None:
    with FlopCounterMode(display=False) as counter:
        PROGRAMS[name]().sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        PROGRAMS[name]().sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    ops = read_capture(tmp_path / "trace.json").tables[raw.MATH].sort("start", -pl.col("end"))
    rows = ops.rows(named=True)
    followers = [row["start"] for row in rows[1:]] + [ops["end"].max()]
    innermost = sum(row["flops"] for row, start in zip(rows, followers, strict=True) if start >= row["end"])
    assert innermost == counter.get_total_flops() > 0


def test_groups_divide_a_convolution() -> None:
    sizes, inputs = "[[2, 8, 10, 10], [8, {}, 3, 3], []]", ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]"]
    whole, depthwise = (
        op_flops("aten::convolution", sizes.format(width), json.dumps([*inputs, groups]))
        for width, groups in ((8, "1"), (1, "8"))
    )
    assert whole == 8 * (depthwise or 0) == 2 * 2 * 10 * 10 * 8 * 8 * 9


@pytest.mark.parametrize("heads", [1, 2])
def test_attention_equals_that_of_pytorch(heads: int) -> None:
    query, key, value = (2, 3, 40, 8), (2, 3, 50, 8), (2, 3, 50, 16)
    forward, backward = (
        ("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_backward")
        if heads == 1
        else ("aten::_flash_attention_forward", "aten::_flash_attention_backward")
    )
    sizes = [query, key, value]
    given = [[size[0], size[2], size[1], size[3]] if heads == 2 else list(size) for size in sizes]
    expected = sdpa_flop_count(query, key, value)
    assert op_flops(forward, json.dumps([*given, [], []]), "") == expected
    gradient = sdpa_backward_flop_count((2, 3, 40, 16), query, key, value)
    assert op_flops(backward, json.dumps([given[0], *given, given[0], [], [], []]), "") == gradient


def test_grouped_queries_equal_those_of_pytorch() -> None:
    query, key = (4, 16, 512, 64), (4, 4, 512, 64)
    name, sizes = "aten::_scaled_dot_product_cudnn_attention", [query, key, key]
    try:
        expected = sdpa_flop_count(query, key, key), sdpa_backward_flop_count(query, query, key, key)
    except AssertionError:
        pytest.skip("this PyTorch does not count grouped queries")
    assert (op_flops(name, json.dumps(sizes), ""), op_flops(f"{name}_backward", json.dumps([query, *sizes]), "")) == (
        expected
    )


def test_sequences_of_different_lengths_are_unknown() -> None:
    sizes = [[1, 40, 3, 8], [1, 50, 3, 8], [1, 50, 3, 8], [5], [5]]
    assert op_flops("aten::_flash_attention_forward", json.dumps(sizes), "") is None


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize(
    "sizes",
    ["", "[]", "[[]]", "[[1]]", "[[1, 2], [3, 4]]", "{}", "[[9999999999, 9999999999], [9999999999, 99999999999]]"],
)
def test_impossible_shapes_are_unknown(name: str, sizes: str) -> None:
    assert op_flops(name, sizes, '["a", "[", "", "x", "[0]", "[0]", "True", "True", "", "", "[1, 2"]') is None


ARGUMENTS = {"Input Dims": [[5, 7], [7, 3]], "Concrete Inputs": ['a ], "args": {', "ts"]}
EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1}
TIMES = {"ts": 3, "dur": 4}


@pytest.mark.parametrize(
    "event",
    [EVENT | TIMES | {"args": ARGUMENTS}, {"args": ARGUMENTS} | EVENT | TIMES, EVENT | {"args": ARGUMENTS} | TIMES],
)
def test_fields_may_come_in_any_order(tmp_path: Path, event: dict[str, object]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    ops = read_capture(path).tables[raw.MATH]
    assert ops.select("flops", pl.col("end") - pl.col("start")).rows() == [(2 * 5 * 7 * 3, 4000)]
