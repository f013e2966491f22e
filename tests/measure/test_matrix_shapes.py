"""Efficiency by shape, on the trace of a program whose shapes are known (tests/test_fsdp_tp.py), and by op."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace

import polars as pl
import pytest

from tests.captures import analyzed, sample
from tests.test_fsdp_tp import FILES, HALF, LAYERS, ROWS, STEPS, WIDTH
from traceview.measure.matrix_shapes import ABOVE_MEMORY, ABOVE_PEAK
from traceview.model.rows import MatrixShape
from traceview.pipeline import analyze
from traceview.read.kineto.sizes import op_work

FP32_PEAK = 67e12  # FLOP/s of the H200 without tensor cores


def kernel_ns(name: str) -> dict[tuple[str, str], float]:
    """Return the ns of the trace's kernels by the op and the sizes that their external id names."""
    events = json.loads(gzip.decompress(sample(name).read_bytes()))["traceEvents"]
    ops = {
        event["args"]["External id"]: (event["name"], event["args"]["Input Dims"])
        for event in events
        if event.get("name") in ("aten::mm", "aten::addmm")
    }
    lengths: dict[tuple[str, str], float] = defaultdict(float)
    for event in events:
        if event.get("cat") == "kernel" and (op := ops.get(event["args"].get("External id"))):
            lengths[op[0], " * ".join("x".join(map(str, size)) for size in op[1] if len(size) == 2)] += (
                1e3 * event["dur"]
            )
    return lengths


def shapes_of(name: str) -> dict[tuple[str, str], MatrixShape]:
    (device,) = analyzed(sample(name)).devices
    return {(row.op, row.shape): row for row in device.tables["matrix_shapes"].rows}


def test_shapes_of_a_program() -> None:
    """A layer has two products with a bias, and four in its backward pass, two of them of equal shape."""
    rows, calls = shapes_of(FILES[0]), LAYERS * STEPS
    expected = {
        ("aten::addmm", ROWS, WIDTH, HALF): calls,
        ("aten::addmm", ROWS, HALF, WIDTH): calls,
        ("aten::mm", ROWS, HALF, WIDTH): 2 * calls,
        ("aten::mm", ROWS, WIDTH, HALF): calls,
        ("aten::mm", WIDTH, ROWS, HALF): calls,
    }
    keys = {(op, f"{m}x{k} * {k}x{n} fp32"): (op, m, k, n) for op, m, k, n in expected}
    lengths = kernel_ns(FILES[0])
    assert set(rows) == set(keys)
    for key, (op, m, k, n) in keys.items():
        row, count = rows[key], expected[op, m, k, n]
        bias = count * 4 * n if op == "aten::addmm" else 0
        assert (row.count, row.precision, row.note) == (count, "fp32", "")
        assert (row.flops, row.bytes) == (count * 2 * m * n * k, count * 4 * (m * k + k * n + m * n) + bias)
        assert row.total_ns == pytest.approx(lengths[op, key[1].removesuffix(" fp32")], abs=count)
        assert row.flops_per_s == pytest.approx(row.flops / row.total_ns * 1e9)
        assert row.of_peak == pytest.approx(row.flops_per_s / FP32_PEAK, abs=1e-5) and 0.7 < row.of_peak < 0.8
        assert row.intensity == pytest.approx(row.flops / row.bytes)
    assert sum(row.share for row in rows.values()) == pytest.approx(1, abs=1e-5)


def test_above_a_peak_there_is_a_note() -> None:
    """Half of the rows get the FLOPs of a tensor on two GPUs, the others more bytes than the memory can have read."""
    trace = analyzed(sample(FILES[0])).trace
    is_mm = pl.col("op") == "aten::mm"
    more = pl.when(is_mm).then(2 * pl.col("flops")).otherwise("flops").alias("flops")
    sized = trace.sizes.flops.with_columns(more, pl.when(~is_mm).then(100 * pl.col("bytes")).alias("bytes"))
    (device,) = analyze(replace(trace, sizes=replace(trace.sizes, flops=sized))).devices
    notes = {(row.op, row.note) for row in device.tables["matrix_shapes"].rows}
    assert notes == {("aten::mm", ABOVE_PEAK), ("aten::addmm", ABOVE_MEMORY)}


@pytest.mark.parametrize("name", ["torch_profiler/serial.json.gz", "dual.sqlite"])
def test_no_shapes(name: str) -> None:
    assert shapes_of(name) == {}


BF16, HALF_TYPE = "c10::BFloat16", "c10::Half"


@pytest.mark.parametrize(
    ("name", "sizes", "types", "shape", "values"),
    [
        ("aten::mm", [[3, 5], [5, 7]], [BF16] * 2, "3x5 * 5x7 bf16", 3 * 5 + 5 * 7 + 3 * 7),
        ("aten::bmm", [[2, 3, 5], [2, 5, 7]], [HALF_TYPE] * 2, "2x3x5 * 2x5x7 fp16", 2 * (15 + 35 + 21)),
        ("aten::addmm", [[7], [3, 5], [5, 7]], [BF16] * 3, "3x5 * 5x7 bf16", 7 + 15 + 35 + 21),
        ("aten::linear", [[2, 3, 5], [7, 5], [7]], [BF16] * 3, "2x3x5 * 7x5 bf16", 30 + 35 + 7 + 42),
        ("aten::mv", [[3, 5], [5]], [BF16] * 2, "3x5 * 5 bf16", 15 + 5 + 3),
    ],
)
def test_work_of_products(name: str, sizes: list[list[int]], types: list[str], shape: str, values: int) -> None:
    work = op_work(name, json.dumps(sizes), "", json.dumps(types))
    assert work is not None and (work.shape, work.bytes) == (shape, 2 * values)
    unknown = op_work(name, json.dumps(sizes), "", "")
    assert unknown is not None and (unknown.shape, unknown.bytes) == (shape.rpartition(" ")[0], None)


def test_work_of_convolutions_and_attention() -> None:
    image, weight, output = [8, 4, 10, 10], [6, 4, 3, 3], [8, 6, 8, 8]
    count = 8 * 4 * 100 + 6 * 4 * 9 + 8 * 6 * 64
    inputs = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    sizes = json.dumps([image, weight, [], [], [], [], [], [], []])
    types = json.dumps([BF16, BF16, "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"])
    forward = op_work("aten::convolution", sizes, json.dumps(inputs), types)
    assert forward is not None and (forward.shape, forward.bytes) == ("8x4x10x10 * 6x4x3x3 bf16", 2 * count)
    transposed = op_work("aten::convolution", sizes, json.dumps([*inputs[:6], "True", *inputs[7:]]), types)
    assert transposed is not None and transposed.bytes is None
    gradients = json.dumps(["", "", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, True]"])
    backward = op_work(
        "aten::convolution_backward",
        json.dumps([output, image, weight, *[[]] * 8]),
        gradients,
        json.dumps([BF16] * 3 + [""] * 8),
    )
    assert backward is not None and backward.shape == forward.shape
    assert backward.bytes == 2 * (count + 8 * 4 * 100 + 6 * 4 * 9)
    query, key = [2, 16, 128, 64], [2, 16, 256, 64]
    flash = op_work(
        "aten::_scaled_dot_product_flash_attention", json.dumps([query, key, key]), "", json.dumps([BF16] * 3)
    )
    assert flash is not None and flash.shape == "2x16x128x64 * 2x16x256x64 bf16"
    assert flash.bytes == 2 * 2 * 16 * 64 * (2 * 128 + 2 * 256)
