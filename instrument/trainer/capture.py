"""The steps that nsys or torch.profiler records, and checks that they will be recorded with their ranges."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch.profiler import ProfilerAction

from instrument.config.sections import Capture
from instrument.devices import usable_device
from instrument.errors import ConfigError

FIRST_LOST_VERSION = (0, 2, 12)  # first version of nvtx that nsys 2022.4 to 2024.2 does not record
# Environment variables that nsys sets in the programs it starts.
NSYS_VARIABLES = ("NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH")


class CaptureRange:
    """Opens and closes the capture range of `nsys profile -c cudaProfilerApi --capture-range-end=stop`.

    Both wait for the GPU first, so that the capture holds complete steps.

        with closing(CaptureRange(20, 30)) as capture:
            for step in range(steps):
                capture.before(step)
                train_step()

    Args:
        start: the first step that nsys records; None records nothing.
        stop: the first step after the capture.
        device: the device that runs the steps.
    """

    def __init__(self, start: int | None, stop: int | None, device: torch.device | str = "cuda") -> None:
        self._device = usable_device(device)
        self._start, self._stop = (start, stop) if self._device.type == "cuda" else (None, None)
        self._open = False

    def before(self, step: int) -> None:
        """Open the range before its first step and close it before the first step after it.

        A run that resumes in the middle of the range opens it there.
        """
        start, stop = self._start, self._stop
        if start is None or stop is None:
            return
        if start <= step < stop and not self._open:
            torch.cuda.synchronize(self._device)
            torch.cuda.cudart().cudaProfilerStart()  # type: ignore[no-untyped-call]
            self._open = True
        elif step >= stop:
            self.close()

    def close(self) -> None:
        """Close the range if it is open. An error of the GPU is ignored: it was already raised elsewhere."""
        if self._open:
            self._open = False
            with suppress(RuntimeError):
                torch.cuda.synchronize(self._device)
            torch.cuda.cudart().cudaProfilerStop()  # type: ignore[no-untyped-call]


class TorchCapture:
    """Records steps with torch.profiler into a Chrome trace, which `traceview analyze` reads.

    It has the methods of `CaptureRange`. The profiler warms up in the step before the first one.

    Args:
        start: the first step to record.
        stop: the first step after the capture.
        path: the trace file, "trace.json" or "trace.json.gz".

    Raises:
        ConfigError: the folder of the file does not exist.
    """

    def __init__(self, start: int, stop: int, path: Path) -> None:
        if not path.parent.is_dir():
            raise ConfigError(f"{path}: its folder does not exist; create it or use another --trace-file")
        self._start, self._stop, self._path = start, stop, path
        self._profile: torch.profiler.profile | None = None

    def before(self, step: int) -> None:
        """Report the start of a step to the profiler."""
        if self._profile is None:
            # The profiler counts from 0 at its start; a resumed run starts at a later step.
            self._profile = torch.profiler.profile(
                schedule=lambda count: self._action(step + count), on_trace_ready=self._write
            )
            self._profile.start()
        else:
            self._profile.step()

    def close(self) -> None:
        """Write the steps recorded so far, if the capture has not ended."""
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _action(self, step: int) -> ProfilerAction:
        if step == self._stop - 1:
            return ProfilerAction.RECORD_AND_SAVE
        if self._start <= step < self._stop:
            return ProfilerAction.RECORD
        return ProfilerAction.WARMUP if step == self._start - 1 else ProfilerAction.NONE

    def _write(self, profile: torch.profiler.profile) -> None:
        profile.export_chrome_trace(str(self._path))


def open_capture(settings: Capture, device: torch.device, rank: int = 0) -> CaptureRange | TorchCapture:
    """Return what records the steps of a run. Of several ranks, torch.profiler records the first one."""
    if settings.profiler == "torch" and settings.start is not None and settings.stop is not None and rank == 0:
        return TorchCapture(settings.start, settings.stop, settings.trace_file)
    in_nsys = settings.profiler == "nsys"
    return CaptureRange(settings.start if in_nsys else None, settings.stop if in_nsys else None, device)


def missing_capture_reason(settings: Capture, device: torch.device) -> str | None:
    """Return in one line why nsys will not record the steps of `--capture`; None if it will, or none are to be."""
    if settings.start is None or settings.profiler != "nsys":
        return None
    if device.type != "cuda":
        return (
            f"--capture {settings.start}:{settings.stop} has no effect without a GPU, because nsys starts at a CUDA "
            "call; record the whole run (nsys profile -t nvtx), or use --profiler torch"
        )
    if not is_profiled():
        return (
            f"--capture {settings.start}:{settings.stop} has no effect, because the run is not under nsys; start it "
            "with nsys profile -c cudaProfilerApi --capture-range-end=stop, or use --profiler torch"
        )
    return None


def missing_ranges_reason() -> str | None:
    """Return in one line why a capture would contain no NVTX ranges; None if it will contain them."""
    if os.environ.get("NVTX_DISABLE"):
        return "NVTX_DISABLE is set, so the capture will contain no ranges; unset it"
    try:
        installed = version("nvtx")
    except PackageNotFoundError:
        return "nvtx is not installed, so the capture will contain no ranges; run: pip install 'nvtx>=0.2.10,<0.2.12'"
    # "0.2.12rc1" and "0.2.12+local" also count as 0.2.12.
    numbers = tuple(int(number) for number in re.findall(r"\d+", installed)[:3])
    if numbers >= FIRST_LOST_VERSION:
        return (
            f"nsys 2022.4 to 2024.2 record no ranges of nvtx {installed}, so the capture may contain none; "
            "run: pip install 'nvtx>=0.2.10,<0.2.12'"
        )
    return None


def is_profiled() -> bool:
    """Return whether this program runs under nsys."""
    return any(name in os.environ for name in NSYS_VARIABLES)
