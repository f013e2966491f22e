"""Findings on compute, on a hand-made trace with names and limits of an H200's kernels."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from tests.made_trace import made_trace
from tests.rules.helpers import MS, findings, with_calls
from traceview.model.program import Program
from traceview.model.trace import DEVICES, SHAPES, Trace
from traceview.rules.kernels import slow_kernels, small_grids

LIMITS = {
    "name": "NVIDIA H200",
    "sm_count": 132,
    "warps_per_sm": 64,
    "registers_per_sm": 65536,
    "shared_bytes_per_sm": 233472,
    "blocks_per_sm": 32,
    "compute_capability": 90,
}


def trace_of_kernels(name: str, blocks: int = 1000, count: int = 4, program: str = "pytorch") -> Trace:
    """Return a trace of back-to-back kernels of 1 ms with this full name and number of blocks."""
    trace = made_trace([(step * MS, (step + 1) * MS, "compute", 0, None) for step in range(count)])
    shape = dict.fromkeys(SHAPES, 1) | {"name": name, "demangled": name, "grid_x": blocks, "block_x": 128}
    limits = [pl.lit(value, DEVICES[column]).alias(column) for column, value in LIMITS.items()]
    return replace(
        trace,
        shapes=pl.concat([trace.shapes[:1], pl.DataFrame([shape], schema=dict(SHAPES)), trace.shapes[2:]]),
        devices=trace.devices.with_columns(limits),
        program=Program(program, (program,), python=program == "pytorch"),
    )


def test_fp32_products_cost_what_tf32_saves() -> None:
    (finding,) = findings(trace_of_kernels("ampere_sgemm_128x64_nn"), slow_kernels)
    assert (finding.id, finding.claims, finding.severity) == ("fp32_matrix", "compute", "high")
    assert 2 * MS < finding.cost_ns < 4 * MS
    assert "set_float32_matmul_precision" in finding.code


def test_advice_fits_the_program() -> None:
    (finding,) = findings(trace_of_kernels("ampere_sgemm_128x64_nn", program="cuda"), slow_kernels)
    assert "cublasSetMathMode" in finding.code
    assert "torch" not in finding.code + finding.advice


def test_chains_are_a_finding_in_pytorch_only() -> None:
    name = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>, A>(int)"
    (finding,) = findings(trace_of_kernels(name), slow_kernels)
    assert finding.id == "unfused_chains"
    assert findings(trace_of_kernels(name, program="cuda"), slow_kernels) == ()


@pytest.mark.parametrize(("blocks", "cost"), [(1, 4 * MS * 131 // 132), (66, 2 * MS), (132, None), (1000, None)])
def test_small_grids_cost_the_idle_sms(blocks: int, cost: int | None) -> None:
    result = findings(trace_of_kernels("stencil", blocks, program="cuda"), small_grids)
    assert [finding.id for finding in result] == ([] if cost is None else ["small_grid"])
    if cost is not None:
        assert result[0].cost_ns == pytest.approx(cost, abs=4)


@pytest.mark.parametrize(("call", "ids"), [("LaunchKernel", ["small_grid"]), ("LaunchCooperativeKernel", [])])
def test_blocks_that_wait_for_each_other_are_not_too_few(call: str, ids: list[str]) -> None:
    """`p2p` of round 14: a barrier of the whole grid after each antidiagonal takes longer with more blocks."""
    alike = trace_of_kernels("sweep", 64, program="cuda")
    calls = [(step * MS, step * MS + 1000, "api", 0) for step in range(4)]
    trace = made_trace([(step * MS + 2000, (step + 1) * MS, "compute", 0, step) for step in range(4)], calls)
    trace = replace(trace, shapes=alike.shapes, devices=alike.devices, program=alike.program)
    named = with_calls(trace, [f"cuda{call}"] * 4)
    assert [finding.id for finding in findings(named, small_grids)] == ids


def test_launches_with_few_blocks_are_counted() -> None:
    """`sudoku_bfs` of round 12: the grid of one kernel grows with the frontier."""
    trace = trace_of_kernels("expand", 1, program="cuda")
    shapes = pl.concat([trace.shapes, trace.shapes[1:2].with_columns(grid_x=pl.lit(500, pl.Int64))])
    shape = pl.when(pl.int_range(pl.len()) == 3).then(len(shapes) - 1).otherwise(pl.col("shape")).cast(pl.UInt32)
    mixed = replace(trace, shapes=shapes, operations=trace.operations.with_columns(shape.alias("shape")))
    assert findings(trace, small_grids)[0].title.startswith("expand runs 1 block on")
    assert findings(mixed, small_grids)[0].title.startswith("3 of 4 launches of expand run 1 block on")
    # A launch too short to count has the grid, too (`bfs` of round 16).
    end = pl.when(pl.int_range(pl.len()) == 1).then(pl.col("start") + 5000).otherwise(pl.col("end"))
    (finding,) = findings(replace(trace, operations=trace.operations.with_columns(end=end)), small_grids)
    assert finding.title.startswith("expand runs 1 block on") and "takes 3.01 ms in 4 launches, 100%" in finding.advice
    assert finding.cost_ns == pytest.approx(3 * MS * 131 // 132, abs=4)


@pytest.mark.parametrize(
    ("blocks", "part"), [(132, None), (165, 3 / 8), (231, None), (276, 0.3), (528, None), (2244, None)]
)
def test_uneven_blocks_cost_what_the_fullest_sm_does_more(blocks: int, part: float | None) -> None:
    result = findings(trace_of_kernels("stencil", blocks, program="cuda"), small_grids)
    assert [finding.id for finding in result] == ([] if part is None else ["tail_wave"])
    if part is not None:
        assert f"{blocks} blocks on 132 SMs" in result[0].title
        assert result[0].cost_ns == pytest.approx(4 * MS * part, rel=0.02)


def test_libraries_choose_their_grids() -> None:
    name = "volta_h884gemm_128x64_ldg8_nn"
    for program in ("cuda", "pytorch"):
        for blocks, kind in ((4, "small_grid"), (165, "tail_wave")):
            (finding,) = findings(trace_of_kernels(name, blocks, program=program), small_grids)
            assert finding.id == kind and "more blocks" not in finding.advice + finding.remedy
            assert "<<<" not in finding.code
        (finding,) = findings(trace_of_kernels(name, 4, program=program), small_grids)
        assert finding.remedy == "Give these library calls more work, or use another routine."


def test_uneven_blocks_of_memory_bound_kernels_of_libraries_are_not_findings() -> None:
    name = "void at::native::<unnamed>::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>(T1)"
    assert findings(trace_of_kernels(name, 132 * 5 // 4), small_grids) == ()


def test_gpu_without_tf32_gains_by_fp16() -> None:
    trace = trace_of_kernels("volta_sgemm_128x64_nn")
    (finding,) = findings(replace(trace, devices=trace.devices.with_columns(name=pl.lit("Tesla T4"))), slow_kernels)
    assert finding.id == "fp32_matrix"
    assert "FP16" in finding.remedy
    assert "GradScaler" in finding.code


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void at::native::<unnamed>::CatArrayBatchedCopy<float>(T1 *)", "concatenations"),
        ("void at::native::elementwise_kernel<at::native::direct_copy_kernel_cuda>(int)", "strided_copies"),
        ("void at::native::elementwise_kernel<at::native::bfloat16_copy_kernel_cuda>(int)", "casts"),
    ],
)
def test_moves_are_findings_without_a_prediction(name: str, kind: str) -> None:
    result = findings(trace_of_kernels(name), slow_kernels)
    finding = next(finding for finding in result if finding.id == kind)
    assert finding.claims == "compute"
    assert "whatif" not in finding.advice
    assert finding.code
    assert sum(finding.cost_ns for finding in result) <= 4 * MS
    assert findings(trace_of_kernels(name, program="cuda"), slow_kernels) == ()


def test_each_nanosecond_of_compute_is_claimed_once() -> None:
    result = findings(trace_of_kernels("ampere_sgemm_128x64_nn", blocks=4), slow_kernels, small_grids)
    assert sum(finding.cost_ns for finding in result) <= 4 * MS


def test_slower_kernels_reduce_the_saving() -> None:
    add = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>, A>(int)"
    flash = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>(P)"
    alone, beside = (trace_of_kernels(add, count=count) for count in (2, 4))
    rows = pl.Series([1, 1, 2, 2], dtype=beside.operations.schema["shape"])
    shape = beside.shapes[1:2].with_columns(demangled=pl.lit(flash, beside.shapes.schema["demangled"]))
    beside = replace(
        beside,
        operations=beside.operations.with_columns(shape=rows),
        shapes=pl.concat([beside.shapes[:2], shape, beside.shapes[3:]]),
    )
    (gain,), slowed = findings(alone, slow_kernels), findings(beside, slow_kernels)
    assert gain.id == "unfused_chains"
    assert sum(finding.cost_ns for finding in slowed) < gain.cost_ns


def test_convolutions_of_volumes_gain_nothing_by_layouts() -> None:
    layout, volume = "void nchwToNhwcKernel<float>(P)", "void cutlass::Kernel<cutlass_tensorop_s1688fprop_{}_ndhwc>(P)"
    for name, expected in ((volume, 0), (volume.replace("ndhwc", "nhwc"), 1)):
        trace = trace_of_kernels(layout, count=4)
        shape = trace.shapes[1:2].with_columns(demangled=pl.lit(name, trace.shapes.schema["demangled"]))
        rows = pl.Series([1, 2, 1, 2], dtype=trace.operations.schema["shape"])
        trace = replace(
            trace,
            operations=trace.operations.with_columns(shape=rows),
            shapes=pl.concat([trace.shapes[:2], shape, trace.shapes[3:]]),
        )
        made = [each for each in findings(trace, slow_kernels) if each.id == "layout_changes"]
        assert len(made) == expected
