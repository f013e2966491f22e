"""The sentence of the answer, and its evidence."""

from __future__ import annotations

from dataclasses import replace

from tests.captures import sample, shared
from tests.report.made_analysis import MS, bare_analysis, made_analysis, made_device
from traceview.model.analysis import Iterations
from traceview.model.program import Program
from traceview.model.trace import Window
from traceview.pipeline import analyze
from traceview.report.analysis.answer import answer, covered, iteration_line, program_words, total_words
from traceview.report.analysis.terminal import render


def test_several_devices_have_a_range_of_shares() -> None:
    analysis = made_analysis(devices=2)
    first, second = analysis.devices
    slow = replace(second, steady=replace(second.steady, compute_ns=5 * MS))
    unused = replace(second, steady=replace(second.steady, window=Window(0, 0), compute_ns=0))
    analysis = replace(analysis, devices=(first, slow, unused))
    assert answer(analysis).startswith("The GPUs compute 5.0% to 60.0% of the time. The largest loss is finding 0")
    assert answer(replace(analysis, devices=(first, first))).startswith("The GPUs compute 60.0% of the time. ")
    assert covered(analysis, unused) == "in the counted iterations"


def test_without_findings_or_gpu_work() -> None:
    assert answer(bare_analysis()) == "The GPU computes 100% of the time. No known problem costs a thousandth of it."
    assert answer(replace(bare_analysis(), devices=())) == "The capture has no GPU work."
    assert iteration_line(bare_analysis().iterations).startswith("No iterations known")


def test_iteration_time_has_its_source() -> None:
    analysis = analyze(sample("ddp2.sqlite"))
    assert isinstance(analysis.iterations, Iterations)
    bare = replace(analysis.iterations, unprofiled=None)
    assert "ms (range iteration #; " in iteration_line(bare)
    assert "ms, unprofiled about " in iteration_line(analysis.iterations)
    period = replace(analysis.iterations, source="period", range="period of 5 launches (jacobi)", confidence=0.95)
    assert "(period of 5 launches (jacobi) in the launch sequence, confidence high; " in iteration_line(period)
    assert total_words(analysis) == "steady part"
    assert total_words(replace(analysis, whole=True)) == "run"


def test_sentence_states_the_first_finding() -> None:
    analysis = analyze(shared("h200_dual.sqlite"))
    first = analysis.findings[0]
    assert first.cost_per_iteration_ns is not None
    each = f"{first.cost_per_iteration_ns / 1e6:.2f} ms per iteration"
    remedy = "Remedy: a CUDA graph, or fewer and larger kernels."
    expected = f"is short gaps between small kernels: {100 * first.cost_fraction:.1f}%, {each}. {remedy}"
    assert first.id == "launch_bound" and answer(analysis).endswith(expected)


def test_kinds_of_programs_in_words() -> None:
    assert program_words(Program()) == "CUDA"
    assert program_words(Program(kind="pytorch", training=False)) == "PyTorch inference"
    assert program_words(Program(kind="tensorrt", training=None)) == "TensorRT"


def test_device_without_work_in_the_iterations() -> None:
    device = made_device()
    outside = replace(device, steady=replace(device.steady, window=Window(5, 5)))
    assert "GPU 0 · NVIDIA H200 · no work in the counted iterations" in render(
        replace(made_analysis(), devices=(outside,))
    )
