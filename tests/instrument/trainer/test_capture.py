"""Calls that start and stop a capture, on a stand-in, and the warning before a capture without ranges."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from instrument import annotate  # noqa: E402
from instrument.config.schema import Capture  # noqa: E402
from instrument.trainer import capture as capture_module  # noqa: E402
from instrument.trainer.capture import (  # noqa: E402
    CaptureRange,
    is_profiled,
    missing_capture_reason,
    missing_ranges_reason,
    open_capture,
)

GPU = torch.device("cuda", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of calls to the profiler of a stand-in for the GPU."""
    made: list[str] = []

    class Runtime:
        def cudaProfilerStart(self) -> None:  # noqa: N802 - the library's own name
            made.append("start")

        def cudaProfilerStop(self) -> None:  # noqa: N802
            made.append("stop")

    monkeypatch.setattr(capture_module, "usable_device", torch.device)
    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: made.append("wait"))
    return made


def run(capture: Capture, steps: range, calls: list[str], device: torch.device = GPU) -> list[str]:
    opened = CaptureRange(capture.start, capture.stop, device)
    for step in steps:
        opened.before(step)
        calls.append(str(step))
    opened.close()
    return calls


def test_start_and_stop_enclose_whole_steps(calls: list[str]) -> None:
    expected = ["0", "1", "wait", "start", "2", "3", "wait", "stop", "4"]
    assert run(Capture(2, 4), range(5), calls) == expected


def test_capture_to_the_end_of_the_run_is_stopped(calls: list[str]) -> None:
    assert run(Capture(1, 3), range(3), calls) == ["0", "wait", "start", "1", "2", "wait", "stop"]


def test_resume_inside_the_range_starts_the_capture(calls: list[str]) -> None:
    assert run(Capture(2, 5), range(3, 7), calls) == ["wait", "start", "3", "4", "wait", "stop", "5", "6"]


def test_resume_after_the_range_starts_nothing(calls: list[str]) -> None:
    assert run(Capture(2, 4), range(4, 6), calls) == ["4", "5"]


def test_no_capture_calls_nothing(calls: list[str]) -> None:
    assert run(Capture(), range(3), calls) == ["0", "1", "2"]


def test_nothing_is_called_without_a_gpu(calls: list[str]) -> None:
    assert run(Capture(0, 2), range(3), calls, torch.device("cpu")) == ["0", "1", "2"]


def test_capture_is_stopped_once(calls: list[str]) -> None:
    opened = CaptureRange(0, 9, GPU)
    opened.before(0)
    opened.close()
    opened.close()
    assert calls == ["wait", "start", "wait", "stop"]


def test_failed_gpu_is_ignored_on_close(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The records until then stay, and the first error is raised."""
    opened = CaptureRange(0, 9, GPU)
    opened.before(0)

    def fail(_device: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    opened.close()
    assert calls == ["wait", "start", "stop"]


def test_torch_profiler_writes_the_steps_with_their_ranges(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    profiled = open_capture(Capture(2, 4, "torch", trace), torch.device("cpu"))
    for step in range(1, 6):  # a resumed run begins at any step
        profiled.before(step)
        with annotate(f"iteration {step}"), annotate("forward"):
            torch.ones(2, 2) @ torch.ones(2, 2)
    profiled.close()
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("ph") == "X"]
    names = [event["name"] for event in events]
    assert [name for name in names if name.startswith("iteration")] == ["iteration 2", "iteration 3"]
    assert (names.count("forward"), names.count("aten::mm")) == (2, 2)


def test_interrupted_torch_capture_is_written(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    profiled = open_capture(Capture(0, 9, "torch", trace), torch.device("cpu"))
    profiled.before(0)
    profiled.before(1)
    profiled.close()
    assert trace.stat().st_size > 0


def test_capture_that_nsys_will_not_record_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "is_profiled", lambda: False)
    assert missing_capture_reason(Capture(), GPU) is None
    assert missing_capture_reason(Capture(1, 2, "torch"), torch.device("cpu")) is None
    assert "1:2 has no effect without a GPU" in str(missing_capture_reason(Capture(1, 2), torch.device("cpu")))
    assert "not under nsys; start it with nsys profile -c" in str(missing_capture_reason(Capture(1, 2), GPU))
    monkeypatch.setattr(capture_module, "is_profiled", lambda: True)
    assert missing_capture_reason(Capture(1, 2), GPU) is None


@pytest.fixture
def no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVTX_DISABLE", raising=False)


@pytest.mark.usefixtures("no_switch")
@pytest.mark.parametrize(
    "installed", ["0.2.12", "0.2.13", "0.3", "0.3.0", "1.0", "0.2.12rc1", "0.2.12+local", "0.2.14.post2"]
)
def test_unrecorded_nvtx_version_is_reported(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(capture_module, "version", lambda _name: installed)
    problem = missing_ranges_reason()
    assert problem is not None
    assert installed in problem
    assert "pip install" in problem
    assert "\n" not in problem


@pytest.mark.usefixtures("no_switch")
@pytest.mark.parametrize("installed", ["0.2.10", "0.2.11", "0.2.5", "0.2", "0.2.11.post1", "0.2.9rc12"])
def test_recorded_nvtx_version_is_not_reported(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(capture_module, "version", lambda _name: installed)
    assert missing_ranges_reason() is None


@pytest.mark.usefixtures("no_switch")
def test_missing_nvtx_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(capture_module, "version", missing)
    assert "nvtx is not installed" in str(missing_ranges_reason())


def test_disabled_nvtx_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTX_DISABLE", "1")
    monkeypatch.setattr(capture_module, "version", lambda _name: "0.2.11")
    assert "NVTX_DISABLE" in str(missing_ranges_reason())


@pytest.mark.parametrize("name", capture_module.NSYS_VARIABLES)
def test_nsys_is_detected(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for one in capture_module.NSYS_VARIABLES:
        monkeypatch.delenv(one, raising=False)
    assert not is_profiled()
    monkeypatch.setenv(name, "1")
    assert is_profiled()
