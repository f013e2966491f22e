"""NVTX ranges that stand for ops and modules: those of emit_nvtx, of a category and of NVIDIA's hooks."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tests.build_export import Call, Kernel, Nvtx, build_export
from traceview.model.trace import Trace
from traceview.pipeline import analyze, open_trace

ENGINE = "autograd::engine::evaluate_function: AddmmBackward0"


def opened(folder: Path, *nvtx: Nvtx, statements: tuple[str, ...] = ()) -> Trace:
    path = build_export(folder / "made.sqlite", kernels=[Kernel()], api=[Call()], nvtx=nvtx, statements=statements)
    return open_trace(path)


def ranges(trace: Trace) -> list[tuple[str, str]]:
    return trace.ranges.select(pl.col("name", "domain").cast(pl.String)).rows()


def scopes(trace: Trace) -> list[tuple[object, ...]]:
    return trace.scopes.select(pl.col("name", "kind").cast(pl.String), "backward", "sequence", "range").rows()


def test_ops_of_emit_nvtx(tmp_path: Path) -> None:
    names = (
        "aten::addmm, seq = 12, op_id = 3, sizes = [[8], [2, 4], []], input_op_ids = [(0,-1), (2,0)]",
        f"{ENGINE}, seq = 12, op_id = 40",
        "aten::mm, op_id = 41",
        "MyFunction, seq = 7",
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad, seq = 18446744073709551615, op_id = 9",
    )
    trace = opened(tmp_path, *(Nvtx(start, 100 - start, name) for start, name in enumerate(names)))
    assert scopes(trace) == [
        ("aten::addmm", "op", False, 12, 0),
        (ENGINE, "op", True, 12, 1),
        ("aten::mm", "op", False, None, 2),
        ("MyFunction", "op", False, 7, 3),
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "op", True, None, 4),
    ]
    assert ranges(trace)[0] == ("aten::addmm", "PyTorch ops")


def test_record_function_is_not_an_op(tmp_path: Path) -> None:
    trace = opened(tmp_path, Nvtx(0, 100, "iteration 3, op_id = 5"), Nvtx(1, 99, "a, seq = x"))
    assert scopes(trace) == []
    assert ranges(trace) == [("iteration 3", ""), ("a, seq = x", "")]


def test_modules_have_a_category(tmp_path: Path) -> None:
    category = ("ALTER TABLE NVTX_EVENTS ADD COLUMN category INTEGER", "UPDATE NVTX_EVENTS SET category = 1")
    other = "UPDATE NVTX_EVENTS SET category = 2 WHERE text = 'forward'"
    trace = opened(
        tmp_path,
        Nvtx(text="module", kind=33),
        Nvtx(0, 100, "layer1.0"),
        Nvtx(1, 60, "layer1.0 backward"),
        Nvtx(2, 50, "forward"),
        statements=(*category, other),
    )
    assert scopes(trace) == [("layer1.0", "module", False, None, 0), ("layer1.0", "module", True, None, 1)]
    assert ranges(trace)[1] == ("layer1.0 backward", "")


def test_modules_of_hooks_with_parameters(tmp_path: Path) -> None:
    trace = opened(tmp_path, Nvtx(0, 100, "{'Module': 'layers.0.mlp', 'TrainableParams': {'weight': [4, 4]}}"))
    assert scopes(trace) == [("layers.0.mlp", "module", False, None, 0)]


def test_place_of_a_kernel_in_an_export(tmp_path: Path) -> None:
    trace = opened(
        tmp_path, Nvtx(0, 100, "train"), Nvtx(1, 99, "{'Module': 'mlp'}"), Nvtx(2, 90, "aten::mm, seq = 1, op_id = 1")
    )
    (row,) = analyze(trace).devices[0].tables["kernel_places"].rows
    place = (row.kernel, row.range, row.module, row.op, row.inner_op, row.line, row.direction, row.count, row.total_ns)
    assert place == ("gemm", "train", "mlp", "aten::mm", "aten::mm", None, "forward", 1, 10)


def test_kernel_of_a_graph_belongs_to_its_capture(tmp_path: Path) -> None:
    """The node of the instantiated graph (9) names the node of the capture (5), in one of its two events."""
    thread = 1 << 48 | 10 << 24 | 11
    rows = f"(3, {thread}, 5, NULL), (30, {thread}, 9, NULL), (31, {thread}, 9, 5)"
    path = build_export(
        tmp_path / "made.sqlite",
        kernels=[Kernel(60, 70), Kernel(70, 80, correlation=2)],
        api=[Call(55, 57, "cudaGraphLaunch_v10000"), Call(57, 58, correlation=2)],
        nvtx=[Nvtx(0, 20, "forward"), Nvtx(1, 10, "{'Module': 'mlp'}"), Nvtx(50, 90, "replay")],
        statements=(
            "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN graphNodeId INTEGER",
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET graphNodeId = 9 WHERE start = 60",
            "CREATE TABLE CUDA_GRAPH_NODE_EVENTS (start INT, globalTid INT, graphNodeId INT, originalGraphNodeId INT)",
            f"INSERT INTO CUDA_GRAPH_NODE_EVENTS VALUES {rows}",
        ),
    )
    trace = open_trace(path)
    assert trace.captures.rows() == [(0, 0, 3)]
    places = {(row.range, row.module, row.direction) for row in analyze(trace).devices[0].tables["kernel_places"].rows}
    assert places == {("forward", "mlp", "forward"), ("replay", None, None)}
