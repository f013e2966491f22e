"""`traceview doctor --calibrate`: what nsys adds to calls, from runs of the microbenchmark."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from traceview.captures import calibrate as module
from traceview.captures.microbenchmark import Nvtx
from traceview.cli.record import doctor as command
from traceview.cli.schemas import SCHEMAS
from traceview.errors import TraceviewError
from traceview.read import nsys_rep
from traceview.read.calibration import read_calibration

CALLS = {"cuGraphLaunch": 1_400, "event query": 400, "cuLaunchKernel": 4_000}  # ns without nsys


def run(added: float, spacing: int, *, slow: float = 1, factor: float = 1) -> dict[str, Any]:
    """Return the document of a run: nsys adds `added` times the reference's ns.

    Later batches are `slow` times as long, and the whole run takes `factor` times as long.
    """
    calls = [
        {"name": name, "batches": [factor * (ns + added * module.REFERENCE.get(name, 0)) * slow**late for late in LATE]}
        for name, ns in CALLS.items()
    ]
    return {"gpu": "made", "cuda": 13000, "kernel_spacing": round(spacing * factor), "calls": calls}


LATE = (0, 0, 0, 1, 1)


def test_figures_of_the_reference_machine() -> None:
    """Slow batches, and a slow run of three, change nothing."""
    plain = [run(0, 5336), run(0, 5336, slow=1.7), run(0, 5336, factor=1.5)]
    traced = [run(1, 5596), run(1, 5596, slow=1.7), run(1, 5596, factor=1.5)]
    figures = module.figures(plain, traced)
    assert (figures["scale"], figures["kernel_gap_ns"]) == (1, 260)


def test_figures_of_a_machine_twice_as_slow() -> None:
    assert module.figures([run(0, 5336)], [run(2, 5336)]) == {
        "scale": 2.0,
        "scale_range": [2.0, 2.0],
        "kernel_gap_ns": 0,
    }


def test_range_has_the_quartiles_of_the_rounds() -> None:
    figures = module.figures([run(0, 5336)] * 5, [run(scale, 5336) for scale in (0.8, 0.9, 1, 1.2, 9)])
    low, high = cast("list[float]", figures["scale_range"])
    assert 0.8 < low < cast("float", figures["scale"]) == 1 < high < 9


def test_calls_that_nsys_does_not_slow_down_cost_nothing() -> None:
    figures = module.figures([run(0, 5400)], [run(-0.1, 5300)])
    assert (figures["scale"], figures["kernel_gap_ns"]) == (0, 0)


def test_written_calibration_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([run(0, 5336), run(1, 5680)])
    monkeypatch.setattr(nsys_rep, "installed_nsys", lambda: "/bin/true")
    monkeypatch.setattr(module, "_run", lambda _folder, _before: next(runs))
    output = tmp_path / "calibration.json"
    result = CliRunner().invoke(command, ["--calibrate", "--output", str(output), "--rounds", "1"])
    assert result.exit_code == 0, result.output
    assert "calibration.json: nsys costs 1.0 times" in result.output
    costs = read_calibration(output)
    assert (costs.scale.middle, costs.kernel_gap.middle) == (1.0, 344)
    document = json.loads(output.read_text())
    Draft202012Validator(SCHEMAS["calibrate"]()).validate(document)


def test_errors_name_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_rep, "installed_nsys", lambda: None)
    with pytest.raises(TraceviewError, match="nsys is not on PATH"):
        module.calibrate(1, lambda _step, _done: None)
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        monkeypatch.setattr(nsys_rep, "installed_nsys", lambda: "/bin/true")
        with pytest.raises(TraceviewError, match=r"no CUDA calls can be timed on this machine: libcuda\.so\.1"):
            module.calibrate(1, lambda _step, _done: None)


def test_ranges_do_nothing_without_a_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    nvtx = Nvtx()
    assert nvtx.push(b"x") is None and nvtx.pop() is None
