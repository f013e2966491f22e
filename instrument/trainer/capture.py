"""The capture range of nsys, and a check that nsys records NVTX ranges."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import torch

from instrument.devices import usable_device

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
        self._start, self._stop, self._device = start, stop, usable_device(device)
        self._open = False

    def before(self, step: int) -> None:
        """Open the range before its first step and close it before the first step after it.

        A run that resumes in the middle of the range opens it there.
        """
        start, stop = self._start, self._stop
        if start is None or stop is None:
            return
        if start <= step < stop and not self._open:
            self._synchronize()
            self._call("cudaProfilerStart")
            self._open = True
        elif step >= stop:
            self.close()

    def close(self) -> None:
        """Close the range if it is open. An error of the GPU is ignored: it was already raised elsewhere."""
        if self._open:
            self._open = False
            with suppress(RuntimeError):
                self._synchronize()
            self._call("cudaProfilerStop")

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _call(self, name: str) -> None:
        if self._device.type == "cuda":
            getattr(torch.cuda.cudart(), name)()  # type: ignore[no-untyped-call]


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
