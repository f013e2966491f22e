"""FLOPs and messages at the kernels that do them: hand-made traces in torch.profiler's format, and slow oracles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import sample, shared
from tests.made_trace import made_trace
from traceview.measure.rates import NO_FLOPS, NO_SHAPES, bus_factor, parallelism
from traceview.model.sizes import FLOPS, MARKS, MESSAGES, WorkSizes
from traceview.model.trace import Trace, Window
from traceview.pipeline import analyze, open_trace
from traceview.report.analysis import document
from traceview.report.analysis.answer import speed_lines

H200 = {"id": 0, "name": "NVIDIA H200", "numSms": 132, "computeMajor": 9, "computeMinor": 0}
GEMM = "nvjet_tst_128x64_64x9_2x1_v_bz_TNT"  # bfloat16 on tensor cores
FP32 = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(Params)"
TERA = 10**12


def event(category: str, name: str, ts: float, dur: float, tid: int = 9, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launch(at: float, correlation: int, name: str, dur: float, start: float, tid: int = 9, **args: Any) -> list[Any]:
    """Return a launch call at a time, and the kernel that it launches."""
    kernel = event("kernel", name, start, dur, 7, device=0, context=1, stream=7, correlation=correlation, **args)
    return [event("cuda_runtime", "cudaLaunchKernel", at, 1, tid, correlation=correlation), kernel]


def op(name: str, ts: float, dur: float, sizes: Any, inputs: Any = (), tid: int = 9) -> dict[str, Any]:
    return event("cpu_op", name, ts, dur, tid, **{"Input Dims": sizes, "Concrete Inputs": list(inputs)})


def trace_of(path: Path, *events: Any) -> Trace:
    flat = [each for some in events for each in (some if isinstance(some, list) else [some])]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [H200], "traceEvents": flat}))
    return open_trace(path)


def test_flops_belong_to_the_matrix_kernels_of_the_innermost_op(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path / "a.json",
        op("aten::linear", 0, 20, [[1000, 1000], [1000, 1000]]),
        op("aten::mm", 2, 15, [[1000, 1000], [1000, 1000]]),
        launch(3, 1, "void splitKreduce_kernel<32, float>(int)", 1, 30),
        launch(5, 2, GEMM, 6, 40),
        launch(6, 4, GEMM, 4, 50),
        op("aten::mm", 60, 10, [[500, 1000], [1000, 1000]]),
        launch(61, 3, FP32, 40, 70),
        op("aten::mm", 62, 3, [[7, 1000], [1000, 1000]], tid=10),  # another thread: nothing is launched in it
    )
    (device,) = analyze(trace).devices
    rows = {row.precision: row for row in device.tables["matrix_precisions"].rows if row.flops}
    assert (rows["bf16"].flops, rows["bf16"].known_ns) == (2 * 10**9, 10_000)
    assert (rows["fp32"].flops, rows["fp32"].flops_per_s) == (10**9, 25e12)
    assert rows["fp32"].of_peak == pytest.approx(25 / 67, abs=1e-6)
    (speed,) = analyze(trace).tables["speed_of_light"].rows
    assert (speed.source, speed.flops, speed.time_ns, speed.precision) == ("shapes", 3 * 10**9, 80_000, "fp32")
    assert speed.mfu == pytest.approx(3e9 / 80e-6 / 67e12, abs=1e-6)
    assert (speed.tf32_peak_flops_per_s, speed.bf16_peak_flops_per_s) == (494 * TERA, 989 * TERA)
    assert speed.at_peak_ns == round(2e18 / (989 * TERA) + 1e18 / (67 * TERA))
    assert speed.known_fraction == 1
    (line,) = speed_lines(analyze(trace))
    assert line == "GPU 0 computes at 37.5 TFLOP/s, 56.0% of its FP32 peak (67.0 TFLOP/s)."


def test_window_cuts_flops(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path / "a.json", op("aten::mm", 0, 9, [[1000, 1000], [1000, 1000]]), launch(1, 1, GEMM, 100, 20)
    )
    start = int(trace.operations["start"][0])
    (device,) = analyze(trace, window=Window(start, start + 25_000)).devices
    (row,) = device.tables["matrix_precisions"].rows
    assert (row.flops, row.known_ns) == (5 * 10**8, 25_000)


def test_without_shapes_flops_are_null(tmp_path: Path) -> None:
    analysis = analyze(trace_of(tmp_path / "a.json", launch(1, 1, GEMM, 100, 20)))
    (row,) = document(analysis)["speed_of_light"]  # type: ignore[misc]
    assert (row["flops"], row["mfu"], row["unknown_because"]) == (None, None, NO_SHAPES)
    assert (row["precision"], row["peak_flops_per_s"]) == ("bf16", 989 * TERA)
    assert list(speed_lines(analysis)) == []


def test_few_shapes_tell_no_speed(tmp_path: Path) -> None:
    known = [op("aten::mm", 0, 9, [[1000, 1000], [1000, 1000]]), *launch(1, 1, GEMM, 10, 20)]
    (half,) = analyze(trace_of(tmp_path / "a.json", *known, launch(40, 2, GEMM, 10, 50))).tables["speed_of_light"].rows
    (less,) = analyze(trace_of(tmp_path / "b.json", *known, launch(40, 2, GEMM, 20, 50))).tables["speed_of_light"].rows
    assert (half.flops, half.known_fraction) == (2 * 10**9, 0.5)
    assert (less.flops, less.mfu) == (None, None) and "33.3% of the time" in (less.unknown_because or "")


@pytest.mark.parametrize("flops", [None, 10**12])
def test_flops_of_an_iteration(flops: int | None) -> None:
    analysis = analyze(shared("h200_dual.sqlite"), flops_per_iteration=flops)
    (row,) = analysis.tables["speed_of_light"].rows
    if flops is None:
        assert (row.source, row.flops_per_s, row.unknown_because) == (None, None, NO_FLOPS)
        return
    time_ns = analysis.iterations.time_ns  # type: ignore[union-attr]
    assert (row.source, row.flops, row.time_ns) == ("option", flops, time_ns)
    assert row.mfu == pytest.approx(flops / time_ns * 1e9 / (989 * TERA), abs=1e-6)


def test_marks_state_the_flops_of_an_iteration() -> None:
    trace = open_trace(sample("dual.sqlite"))
    process = int(trace.devices["processes"][0][0])
    marks = pl.DataFrame({"time": [0, 1], "process": [process, process + 1], "flops": [5, 900]}, schema=dict(MARKS))
    (row,) = analyze(replace(trace, sizes=WorkSizes(marks=marks))).tables["speed_of_light"].rows
    assert (row.source, row.flops) == ("mark", 5)
    (stated,) = (
        analyze(replace(trace, sizes=WorkSizes(marks=marks)), flops_per_iteration=7).tables["speed_of_light"].rows
    )
    assert (stated.source, stated.flops) == ("option", 7)


def nccl(at: float, correlation: int, dur: float, start: float, **args: Any) -> list[Any]:
    return launch(at, correlation, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", dur, start, **args)


MESSAGE = {
    "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "Group size": 4, "dtype": "Float",
    "Process Group Name": "3", "Process Group Description": "mesh_tp",
}  # fmt: skip


def test_messages_of_kernels_and_of_ops(tmp_path: Path) -> None:
    gather = MESSAGE | {"Collective name": "_allgather_base", "Out msg nelems": 4000, "dtype": "BFloat16"}
    trace = trace_of(
        tmp_path / "a.json",
        nccl(0, 1, 10, 5, **MESSAGE),
        nccl(20, 2, 40, 25, **MESSAGE),
        event("cpu_op", "record_param_comms", 80, 5, **gather, **{"External id": 77}),
        nccl(81, 3, 20, 90, **{"External id": 77}),
        nccl(120, 4, 30, 130),
    )
    (device,) = analyze(trace).devices
    rows = {(row.collective, row.element_type): row for row in device.tables["collectives"].rows}
    reduce, gathered, unknown = (
        rows[key] for key in (("all_reduce", "fp32"), ("all_gather", "bf16"), ("all_reduce", "bf16"))
    )
    assert (reduce.count, reduce.message_bytes, reduce.bytes, reduce.total_ns) == (2, 4000, 8000, 50_000)
    assert (reduce.group, reduce.parallelism, reduce.group_size) == ("mesh_tp (3)", "TP", 4)
    assert (reduce.algorithm_bandwidth, reduce.bus_bandwidth) == (0.16, 0.24)
    assert (reduce.best_bus_bandwidth, reduce.mean_bus_bandwidth) == (0.6, 0.24)
    assert (gathered.message_bytes, gathered.bus_factor) == (8000, 0.75)
    assert (unknown.count, unknown.message_bytes, unknown.bus_bandwidth) == (1, None, None)
    assert sum(row.total_ns for row in rows.values()) == 100_000


def test_kernels_that_share_an_external_id_have_no_size(tmp_path: Path) -> None:
    op_event = event("cpu_op", "record_param_comms", 0, 5, **MESSAGE, **{"External id": 77})
    kernels = [nccl(at, at, 10, 10 * at + 5, **{"External id": 77}) for at in (1, 2)]
    assert trace_of(tmp_path / "a.json", op_event, *kernels).sizes.messages.is_empty()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 50), st.sampled_from([None, 10, 20])), min_size=1, max_size=12)
)
def test_collectives_equal_an_oracle(kernels: list[tuple[int, int, int | None]]) -> None:
    at, work = 0, []
    for gap, length, _ in kernels:
        work.append((at + gap, at + gap + length, "communication", 0, None))
        at += gap + length
    trace = made_trace(work)
    known = [(row, size) for row, (_, _, size) in enumerate(kernels) if size is not None]
    columns = {
        "operation": [row for row, _ in known],
        "collective": ["all_gather"] * len(known),
        "group": [None] * len(known),
        "group_size": [2] * len(known),
        "element_type": ["fp32"] * len(known),
        "bytes": [size for _, size in known],
    }
    messages = pl.DataFrame(columns, schema=dict(MESSAGES))
    (device,) = analyze(replace(trace, sizes=WorkSizes(messages=messages))).devices
    for size in {size for _, _, size in kernels}:
        lengths = sorted(length for _, length, own in kernels if own == size)
        (row,) = (row for row in device.tables["collectives"].rows if row.message_bytes == size)
        assert (row.count, row.total_ns, row.min_ns) == (len(lengths), sum(lengths), lengths[0])
        middle = len(lengths) // 2
        assert row.median_ns == (lengths[middle] + lengths[~middle]) // 2
        assert row.bytes == (None if size is None else size * len(lengths))


@given(
    st.lists(
        st.tuples(st.sampled_from(["compute", "communication"]), st.integers(0, 9), st.integers(0, 3)), max_size=12
    )
)
def test_flops_add_up(kernels: list[tuple[str, int, int]]) -> None:
    """The operations of a call count once, if one of its kernels is a matrix kernel that takes time."""
    work, at = [], 0
    for kind, length, _ in kernels:
        work.append((at, at + length, kind, 0, None))
        at += length + 1
    trace = made_trace(work)
    trace = replace(trace, shapes=trace.shapes.with_columns(demangled=pl.col("name").replace("compute", GEMM)))
    order = sorted(range(len(work)), key=lambda index: work[index][:2])
    rows = [(row, kernels[index][2]) for row, index in enumerate(order) if kernels[index][2]]
    flops = pl.DataFrame(
        [(row, call, 1000 * call, "aten::mm", "", None) for row, call in rows], schema=dict(FLOPS), orient="row"
    )
    if not work or all(length == 0 for _, length, _ in kernels):
        return
    (device,) = analyze(replace(trace, sizes=WorkSizes(flops=flops))).devices
    counted = {call for kind, length, call in kernels if kind == "compute" and length and call}
    actual = sum(row.flops or 0 for row in device.tables["matrix_precisions"].rows)
    assert actual == sum(1000 * call for call in counted)
    by_shape = device.tables["matrix_shapes"].rows
    assert sum(row.flops or 0 for row in by_shape) == sum(
        1000 * call for call in {call for _, ns, call in kernels if ns}
    )
    assert sum(row.total_ns for row in by_shape) == sum(ns for _, ns, call in kernels if call)


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert [bus_factor(name, 8) for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")] == [
        *(1.75, 0.875, 0.875, 0.875)
    ]
    assert (bus_factor("broadcast", None), bus_factor("all_reduce", None), bus_factor("other", 8)) == (1, None, None)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("mesh_tp (12)", "TP"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "TP"),
        ("DATA_PARALLEL_GROUP_WITH_CP (4)", "DP"),
        ("mesh_dp_shard", "DP"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "PP"),
        ("mesh_ep", "EP"),
        ("default_pg (0)", None),
        ("step", None),
        (None, None),
    ],
)
def test_parallelism_of_a_group(group: str | None, expected: str | None) -> None:
    assert parallelism(group) == expected
