#!/usr/bin/env python3
r"""Train as `python -m instrument.train` does, with torch.profiler around the captured steps.

A program is captured by both profilers in two runs, because only one can use CUPTI: under nsys, torch.profiler records
no GPU work.

    python benchmarks/studies/two_profilers.py out.json.gz --steps 30 --capture 20:30 ...
    nsys profile -c cudaProfilerApi --capture-range-end=stop -t cuda,nvtx -s none --cpuctxsw=none -o out \
        python -m instrument.train --steps 30 --capture 20:30 ...

The arguments after the first go to the trainer. Each NVTX range is also a `record_function`, so that both captures have
the same names. With --sync-events before them, synchronizations are recorded too.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from instrument import annotate
from instrument.train import main as train
from instrument.trainer import capture

_open = threading.local()


def _named_in_both(profile: torch.profiler.profile) -> None:
    enter, leave = annotate.__enter__, annotate.__exit__

    def entered(self: annotate) -> annotate:
        record = torch.profiler.record_function(self._name or "")
        record.__enter__()
        _open.__dict__.setdefault("records", []).append(record)
        return enter(self)

    def left(self: annotate, *raised: object) -> None:
        leave(self, *raised)
        _open.records.pop().__exit__(None, None, None)

    annotate.__enter__, annotate.__exit__ = entered, left  # type: ignore[method-assign]
    call = capture.CaptureRange._call

    def _call(self: capture.CaptureRange, name: str) -> None:
        if name == "cudaProfilerStop":
            profile.stop()
        call(self, name)
        if name == "cudaProfilerStart":
            profile.start()

    capture.CaptureRange._call = _call  # type: ignore[method-assign]


def main() -> None:
    """Run the trainer with the other arguments and write the torch.profiler trace."""
    arguments = sys.argv[1:]
    synchronizations = arguments[:1] == ["--sync-events"]
    out, *arguments = arguments[synchronizations:]
    profile = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA],
        experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=synchronizations),
    )
    _named_in_both(profile)
    sys.argv = [sys.argv[0], *arguments]
    try:
        train()
    finally:
        profile.export_chrome_trace(out)


if __name__ == "__main__":
    main()
