"""Calls that start and stop a capture, on a stand-in, and the warning before a capture without ranges."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from instrument import annotate
from instrument.config.schema import Capture
from instrument.trainer import capture as capture_module
from instrument.trainer.capture import (
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


@pytest.mark.parametrize(
    ("capture", "steps", "device", "expected"),
    [
        (Capture(2, 4), range(5), GPU, "0 1 wait start 2 3 wait stop 4"),
        (Capture(1, 3), range(3), GPU, "0 wait start 1 2 wait stop"),  # to the end of the run
        (Capture(2, 5), range(3, 7), GPU, "wait start 3 4 wait stop 5 6"),  # a run that resumes inside the range
        (Capture(2, 4), range(4, 6), GPU, "4 5"),  # and after it
        (Capture(), range(3), GPU, "0 1 2"),
        (Capture(0, 2), range(3), torch.device("cpu"), "0 1 2"),
    ],
)
def test_start_and_stop_enclose_whole_steps(
    capture: Capture, steps: range, device: torch.device, expected: str, calls: list[str]
) -> None:
    assert run(capture, steps, calls, device) == expected.split()


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


@pytest.mark.parametrize(
    ("installed", "recorded"),
    [
        *((version, False) for version in ("0.2.12", "0.2.13", "0.3", "0.3.0", "1.0")),
        *((version, False) for version in ("0.2.12rc1", "0.2.12+local", "0.2.14.post2")),
        *((version, True) for version in ("0.2.10", "0.2.11", "0.2.5", "0.2", "0.2.11.post1", "0.2.9rc12")),
    ],
)
def test_unrecorded_nvtx_version_is_reported(monkeypatch: pytest.MonkeyPatch, installed: str, recorded: bool) -> None:
    monkeypatch.delenv("NVTX_DISABLE", raising=False)
    monkeypatch.setattr(capture_module, "version", lambda _name: installed)
    problem = missing_ranges_reason()
    assert (problem is None) == recorded
    assert problem is None or (installed in problem and "pip install" in problem and "\n" not in problem)


def test_missing_and_disabled_nvtx_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(capture_module, "version", missing)
    monkeypatch.delenv("NVTX_DISABLE", raising=False)
    assert "nvtx is not installed" in str(missing_ranges_reason())
    monkeypatch.setattr(capture_module, "version", lambda _name: "0.2.11")
    monkeypatch.setenv("NVTX_DISABLE", "1")
    assert "NVTX_DISABLE" in str(missing_ranges_reason())


@pytest.mark.parametrize("name", capture_module.NSYS_VARIABLES)
def test_nsys_is_detected(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for one in capture_module.NSYS_VARIABLES:
        monkeypatch.delenv(one, raising=False)
    assert not is_profiled()
    monkeypatch.setenv(name, "1")
    assert is_profiled()
