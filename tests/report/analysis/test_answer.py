"""What the answer rests on, in words."""

from __future__ import annotations

from dataclasses import replace

from tests.captures import analyzed, sample
from tests.report.made_analysis import bare_analysis, made_analysis, made_device
from traceview.model.analysis import Iterations
from traceview.model.program import Program, program_words
from traceview.model.trace import Window
from traceview.report.analysis.answer import covered, families_line, iteration_line
from traceview.report.analysis.terminal import render


def test_window_of_a_device_that_the_figures_cover() -> None:
    analysis = made_analysis()
    [device] = analysis.devices
    unused = replace(device, steady=replace(device.steady, window=Window(0, 0), compute_ns=0))
    assert covered(analysis, unused) == "in the counted iterations"


def test_families_of_kernels_are_named() -> None:
    assert families_line(analyzed(sample("serial.sqlite"))) == "Kernel time: 32.2% matrix products."
    assert families_line(replace(bare_analysis(), devices=())) == ""


def test_iteration_time_has_its_source() -> None:
    analysis = analyzed(sample("ddp2.sqlite"))
    assert isinstance(analysis.iterations, Iterations)
    bare = replace(analysis.iterations, unprofiled=None)
    assert "ms (range iteration #; " in iteration_line(bare)
    assert "ms, unprofiled about " in iteration_line(analysis.iterations)
    period = replace(analysis.iterations, source="period", range="period of 5 launches (jacobi)", confidence=0.95)
    assert "(period of 5 launches (jacobi) in the launch sequence, confidence high; " in iteration_line(period)


def test_kinds_of_programs_in_words() -> None:
    assert program_words(Program()) == "CUDA"
    assert program_words(Program("mpi", ("mpi",))) == "CUDA with MPI"
    assert program_words(Program("openacc", ("openacc", "mpi"))) == "OpenACC with MPI"
    assert program_words(Program(kind="pytorch", training=False, layers=True)) == "PyTorch inference"
    assert program_words(Program(kind="pytorch", training=False, layers=False)) == "PyTorch"
    assert program_words(Program(kind="tensorrt", training=None)) == "TensorRT"


def test_device_without_work_in_the_iterations() -> None:
    device = made_device()
    outside = replace(device, steady=replace(device.steady, window=Window(5, 5)))
    assert "GPU 0 · NVIDIA H200 · no work in the counted iterations" in render(
        replace(made_analysis(), devices=(outside,))
    )
