"""The finding on the kernel, or the family, that takes most of the time. Traces of single kernels are made by hand."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import analyzed, sample
from tests.rules.helpers import MS, findings
from tests.rules.test_compute import trace_of_kernels
from traceview.measure.kernels.families import FAMILIES
from traceview.model.findings import Finding
from traceview.model.rows import KernelUse
from traceview.rules.kernels import FAMILY_WORDS, ROUTINES, costliest_kernel, ncu_filter, small_grids

SAFE_COMMAND = re.compile(
    r"ncu --set full (--kernel-name-base demangled )?-k ('regex:[\w.*]+'|regex:[\w.]+) -c 5 COMMAND"
)


def finding_on(name: str, blocks: int = 1000, program: str = "cuda") -> Finding:
    """Return the finding on four kernels of 1 ms that take all the time of an H200."""
    (finding,) = findings(trace_of_kernels(name, blocks, program=program), costliest_kernel)
    return finding


def test_kernel_that_takes_all_the_time() -> None:
    finding = finding_on("jacobi_kernel(float *, int)")
    title = "jacobi_kernel(float *, int) takes 100% of the time: 4 launches of 1.00 ms with 1,000 blocks of 128 threads"
    assert finding.title == title
    assert (finding.cost_ns, finding.claims, finding.severity) == (4 * MS, "compute", "low")
    assert "1,000 blocks of 128 threads on 132 SMs" in finding.advice
    assert "It works on FP32 data." in finding.advice
    assert finding.code == "ncu --set full -k regex:jacobi_kernel.float....int. -c 5 COMMAND"


def test_graphs_that_are_traced_whole_hide_their_kernels() -> None:
    trace = trace_of_kernels("graph")
    source = pl.lit("graph", trace.operations["source"].dtype).alias("source")
    (finding,) = findings(replace(trace, operations=trace.operations.with_columns(source)), costliest_kernel)
    assert (finding.cost_ns, finding.claims) == (4 * MS, "compute")
    assert finding.title == "compute takes 100% of the time: 4 launches of 1.00 ms"  # the name of the operations
    assert "--cuda-graph-trace=node" in finding.remedy and "--cuda-graph-trace=node" in finding.code


def test_kernels_of_two_microseconds_are_to_do_more() -> None:
    """`cuda_g_o` of round 11: more blocks, or a faster kernel, gain little where start and end take the time."""
    trace = trace_of_kernels("stencil", blocks=4, program="cuda")
    scale = [(pl.col(name) // 500).alias(name) for name in ("start", "end")]
    (finding,) = findings(replace(trace, operations=trace.operations.with_columns(scale)), costliest_kernel)
    assert finding.title.endswith("4 launches of 2.00 µs with 4 blocks of 128 threads")
    assert finding.remedy.startswith("Do more in each launch") and "blocks" not in finding.remedy


def test_small_grid_gets_more_blocks() -> None:
    finding = finding_on("stencil", blocks=60)
    assert "It has 60 blocks on 132 SMs" in finding.advice and "more blocks" in finding.remedy


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("ampere_sgemm_128x64_nn", "cuBLAS"),
        ("nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT", "cuBLAS"),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_execute_kernel__5x_cudnn", "cuDNN"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(T1::Params)", "CUTLASS"),
        ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>>(int)", "ATen"),
        ("void cub::DeviceScanKernel<cub::AgentScanPolicy<128>>(int *)", "CUB"),
    ],
)
@pytest.mark.parametrize("program", ["cuda", "pytorch"])
def test_kernels_of_libraries_get_no_blocks(name: str, library: str, program: str) -> None:
    finding = finding_on(name, blocks=4, program=program)
    assert f"a kernel of {library}" in finding.advice
    assert "more blocks" not in finding.advice + finding.remedy and SAFE_COMMAND.fullmatch(finding.code)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("matmul_naive", "cublas"),
        ("conv2d_kernel", "cuDNN"),
        ("softmax_rows", "cuDNN"),
        ("transposeNaive", "cublasSgeam"),
        ("reduce0", "cub::DeviceReduce"),
        ("block_scan", "cub::DeviceScan"),
        ("fft_stage", "cufft"),
        ("attention_kernel", "FlashAttention"),
    ],
)
def test_hand_written_routines_name_the_one_of_a_library(name: str, words: str) -> None:
    finding = finding_on(name)
    assert words in finding.advice + finding.code


@pytest.mark.parametrize(
    "name", ["fused_moe_kernel", "_p_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128", "grouped_gemm_bf16"]
)
def test_products_of_several_experts_have_no_plain_routine(name: str) -> None:
    finding = finding_on(name)
    assert "cublas" not in (finding.advice + finding.code).lower()


def test_each_routine_has_words() -> None:
    assert {name for name, _ in FAMILIES} >= ROUTINES
    assert set(FAMILY_WORDS) <= {name for name, _ in FAMILIES} | {"custom"}


def test_family_where_no_kernel_stands_out() -> None:
    analysis = analyzed(sample("trainer/prefetch.sqlite"))
    (device,) = analysis.devices
    (finding,) = (each for each in analysis.findings if each.id == "costliest_kernel")
    frame = pl.DataFrame(
        [(row.family, row.label, row.total_ns) for row in device.steady.tables["kernels"].rows], orient="row"
    )
    ns, total = frame.filter(pl.col("column_0") == "gemm")["column_2"].sum(), frame["column_2"].sum()
    assert frame.group_by("column_1").agg(pl.col("column_2").sum())["column_2"].max() < 0.25 * total
    assert finding.title.startswith(f"Matrix products take {100 * ns / device.steady.window.length:.1f}% of the time")
    assert "bfloat16 on tensor cores" in finding.advice and "The costliest, nvjet" in finding.advice


def test_place_among_findings() -> None:
    for name in ("dual.sqlite", "trainer/prefetch.sqlite", "trainer/serial.sqlite"):
        found = analyzed(sample(name)).findings
        place = next(at for at, each in enumerate(found) if each.id == "costliest_kernel")
        kinds = Counter[str]()  # findings of one kind split one cause
        for each in found:
            kinds[each.id] += each.gain.ns
        least = int(0.03 * found[0].gain.of_ns) - 1
        assert all(kinds[each.id] >= least for each in found[:place])
        most = 0.1 * found[0].gain.of_ns  # on a device that computes nearly all the time
        assert all(each.gain.ns <= most for each in found[place + 1 :])


def test_other_findings_on_compute_claim_first() -> None:
    trace = trace_of_kernels("stencil", 66, program="cuda")
    small, rest = findings(trace, small_grids, costliest_kernel)
    assert (small.id, rest.id) == ("small_grid", "costliest_kernel")
    assert small.cost_ns + rest.cost_ns == 4 * MS


def test_kernels_of_little_time_are_no_finding() -> None:
    trace = trace_of_kernels("stencil", count=2)
    late = trace.operations.with_columns(start=pl.col("start") * 100, end=pl.col("start") * 100 + 1000)
    assert findings(replace(trace, operations=late), costliest_kernel) == ()


@given(st.text(min_size=1, max_size=40), st.booleans())
def test_names_of_a_capture_are_no_shell(text: str, generic: bool) -> None:
    label = f"elementwise_kernel<{text}>" if generic else text
    row = KernelUse(
        name="elementwise_kernel" if generic else text,
        demangled=None,
        label=label,
        **dict.fromkeys(("family", "precision", "tensor_core", "grid", "block", "registers", "shared_bytes")),
        **dict.fromkeys(("blocks_per_sm", "waves", "occupancy", "occupancy_limit")),
        **dict.fromkeys(("limiter", "compute_fraction", "memory_fraction")),
        **dict.fromkeys(("count", "total_ns", "mean_ns", "min_ns", "max_ns", "share"), 1),
    )
    assert SAFE_COMMAND.fullmatch(f"ncu --set full {ncu_filter(row)} -c 5 COMMAND")
