"""The steps that nsys records, and whether it will see the ranges."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import torch

from instrument.config.schema import Capture

LOST_FROM = (0, 2, 12)
# What nsys sets in the programs that it starts.
PROFILED_BY = ("NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH")


class CaptureRange:
    """Opens and closes nsys's capture range around steps: `nsys profile -c cudaProfilerApi --capture-range-end=stop`.

    Both wait for the GPU first, so that the capture holds whole steps.
    """

    def __init__(self, capture: Capture, device: torch.device) -> None:
        self._capture, self._device = capture, device
        self._open = False

    def before(self, step: int) -> None:
        """Open the range before its first step, close it before the first one after it.

        A run that goes on in the middle of the range opens it there.
        """
        start, stop = self._capture.start, self._capture.stop
        if start is None or stop is None:
            return
        if start <= step < stop and not self._open:
            self._synchronize()
            self._call("cudaProfilerStart")
            self._open = True
        elif step >= stop:
            self.close()

    def close(self) -> None:
        """Close the range if it is open, also on a GPU that failed: that error was raised where it showed first."""
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


def unseen_ranges() -> str | None:
    """Return why a capture would show no ranges, in one line, or None."""
    if os.environ.get("NVTX_DISABLE"):
        return "NVTX_DISABLE is set, so a capture shows no ranges: unset it"
    try:
        installed = version("nvtx")
    except PackageNotFoundError:
        return "nvtx is not installed, so a capture shows no ranges: pip install 'nvtx>=0.2.10,<0.2.12'"
    # Of "0.2.12rc1" and "0.2.12+local" too, which are 0.2.12 to nsys.
    numbers = tuple(int(number) for number in re.findall(r"\d+", installed)[:3])
    if numbers >= LOST_FROM:
        return (
            f"nvtx {installed}: nsys 2022.4 to 2024.2 lose every range of it, and the capture looks as if nothing were "
            "annotated: pip install 'nvtx>=0.2.10,<0.2.12'"
        )
    return None


def is_profiled() -> bool:
    """Return whether nsys started this program."""
    return any(name in os.environ for name in PROFILED_BY)
