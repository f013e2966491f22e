"""`traceview calibrate`: what nsys adds to calls, from runs of the microbenchmark."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from traceview.cli.calibrate import calibrate as command
from traceview.errors import TraceviewError
from traceview.read.calibration import read_calibration
from traceview.record import calibrate as module
from traceview.record.nvtx_calls import Nvtx


def run(driver: float, runtime: float, spacing: int, *, slow: float = 1) -> dict[str, Any]:
    """Return the document of a run of the microbenchmark whose later batches are `slow` times as long."""
    calls = [
        {"name": name, "batches": [ns, ns, ns, ns * slow, ns * slow]}
        for name, ns in (("cuLaunchKernel", driver), ("cudaLaunchKernel", runtime), ("push, pop", 100))
    ]
    return {"gpu": "made", "cuda": 13000, "kernel_spacing": spacing, "calls": calls}


def traced(driver: float, runtime: float, spacing: int, *, scale: float = 1, slow: float = 1) -> dict[str, Any]:
    """Return the run with nsys on a machine where nsys adds `scale` times as much as on the reference machine."""
    added = module.REFERENCE
    more = [ns + scale * added[name] for name, ns in (("cuLaunchKernel", driver), ("cudaLaunchKernel", runtime))]
    return run(more[0], more[1], spacing, slow=slow)


def test_figures_of_the_reference_machine() -> None:
    """Slow batches and a slow run of three change nothing."""
    plain = [run(4462, 4372, 5336), run(4462, 4372, 5336, slow=1.7), run(7500, 7400, 9000)]
    with_nsys = [traced(4462, 4372, 5680), traced(4462, 4372, 5680, slow=1.7), traced(7500, 7400, 5700)]
    assert module.figures(plain, with_nsys) == {"scale": 1.0, "scale_range": [1.0, 1.0], "kernel_gap_ns": 344}


def test_figures_of_a_machine_twice_as_slow() -> None:
    figures = module.figures([run(8924, 8744, 5336)], [traced(8924, 8744, 5336, scale=2)])
    assert figures == {"scale": 2.0, "scale_range": [2.0, 2.0], "kernel_gap_ns": 0}


def test_range_has_every_round() -> None:
    plain = [run(4462, 4372, 5336)] * 3
    figures = module.figures(plain, [traced(4462, 4372, 5336, scale=scale) for scale in (1.2, 0.5, 1)])
    assert figures["scale_range"] == [0.5, 1.2]


def test_calls_that_nsys_does_not_slow_down_cost_nothing() -> None:
    figures = module.figures([run(5000, 6000, 5400)], [run(4900, 5900, 5300)])
    assert (figures["scale"], figures["kernel_gap_ns"]) == (0, 0)


def test_written_calibration_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([run(4462, 4372, 5336), traced(4462, 4372, 5680)])
    monkeypatch.setattr(module, "installed_nsys", lambda: "/bin/true")
    monkeypatch.setattr(module, "_run", lambda _folder, _before: next(runs))
    output = tmp_path / "calibration.json"
    result = CliRunner().invoke(command, ["--output", str(output), "--rounds", "1"])
    assert result.exit_code == 0, result.output
    assert "calibration.json: nsys costs 1.0 times" in result.output
    costs = read_calibration(output)
    assert (costs.scale.middle, costs.kernel_gap.middle) == (1.0, 344)
    document = json.loads(output.read_text())
    names = {"format", "version", "gpu", "cpu", "cuda", "nsys", "scale", "scale_range", "kernel_gap_ns", "added_ns"}
    assert set(document) == names


def test_errors_name_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed_nsys", lambda: None)
    with pytest.raises(TraceviewError, match="nsys is not on PATH"):
        module.calibrate(1, lambda _step, _done: None)
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        monkeypatch.setattr(module, "installed_nsys", lambda: "/bin/true")
        with pytest.raises(TraceviewError, match=r"no CUDA calls can be timed on this machine: libcuda\.so\.1"):
            module.calibrate(1, lambda _step, _done: None)


def test_ranges_do_nothing_without_a_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    nvtx = Nvtx()
    assert nvtx.push(b"x") is None and nvtx.pop() is None
