"""The times of steps while a program runs, without a profiler, and traces of the steps after slow ones."""

from __future__ import annotations

import os
import sys
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import fmean, median
from time import perf_counter

import torch

from instrument.monitor.loader import LoaderGauge
from instrument.monitor.meter import PARTS, StepMeter
from instrument.monitor.metrics import LoaderCounts, StepFigures, loader_text
from instrument.ranges import COPY, DATA_LOAD
from instrument.trainer.capture import TorchCapture, is_profiled

GROWN = 1.5  # times its least mean a part takes when it has grown
NOTICED = 0.1  # share of a step by which it has grown then
SLOW = 2.0  # times the median a slow step takes
LINE_STEPS = 5  # a line has at least so many steps
KNOWN_STEPS = 10  # a step is slow after at least so many
MAX_TRACES = 3


class Live:
    """Measures steps with events that are read late, so that the host never waits.

    Args:
        seconds: the time between two lines; None prints none.
        traces: whether to record a trace of the step after a slow one.

    Attributes:
        gauge: counts what the loader of the training does.
    """

    def __init__(self, seconds: float | None, *, traces: bool) -> None:
        self._rank = os.environ.get("RANK", "0")
        self._seconds = seconds if self._rank == "0" else None
        self._traces = MAX_TRACES if traces and not is_profiled() else 0
        if traces and is_profiled():
            _say("--capture-slow has no effect under nsys, which records every step")
        self.gauge, self._loader = LoaderGauge(), LoaderCounts()
        self._on_gpu = False
        self._meter: StepMeter | None = None
        self._measures = False
        self._capture: TorchCapture | None = None
        self._capture_ends = 0
        self._printed_at = perf_counter()
        self._last = 0
        self._unprinted: list[dict[str, float]] = []
        self._least: dict[str, float] = {}
        self._step_ms: deque[float] = deque(maxlen=50)

    def part(self, name: str) -> AbstractContextManager[None]:
        """Time a phase of the open step."""
        if self._meter is None or not self._measures or self._is_capturing():
            return nullcontext()
        if name == DATA_LOAD:
            return self._meter.loading()
        name = "copy" if name == COPY else name
        return self._meter.part(name) if name in PARTS else nullcontext()

    def begin(self, step: int) -> None:
        """Start a step, and show what is known of those before. A step in a captured graph is not measured."""
        if self._is_capturing():
            self._measures = False
            return
        if self._meter is None:
            self._on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            device = f"cuda:{torch.cuda.current_device()}" if self._on_gpu else "cpu"
            self._meter = StepMeter(device, self.gauge)
        self._meter.begin(step)
        self._measures = True
        if self._capture is not None:
            self._capture.before(step)
            if step >= self._capture_ends:
                self._end_capture()
        for figures in self._meter.finished():
            self._add(figures, step)
        enough = len(self._unprinted) >= LINE_STEPS
        if enough and self._seconds is not None and perf_counter() - self._printed_at >= self._seconds:
            self._print()

    def end(self) -> None:
        """End the open step; what follows belongs to none."""
        if self._meter is not None and not self._is_capturing():
            self._meter.end()
        self._measures = False

    def _is_capturing(self) -> bool:
        """Return whether a graph is being captured: CUDA refuses to query events, and would capture a record."""
        return self._on_gpu and torch.cuda.is_current_stream_capturing()

    def close(self) -> None:
        """Show the last steps, when the program ends."""
        if self._capture is not None:
            self._end_capture()
        if self._meter is not None:
            for figures in self._meter.finished():
                self._add(figures, None)
        if self._seconds is not None:
            self._print()

    def _add(self, figures: StepFigures, current: int | None) -> None:
        """Note the times of a step that has ended; `current` is the one that runs."""
        step, data = figures.step_ms or 0.0, figures.data_load_ms or 0.0
        if self._capture is None:
            if current is not None and self._traces and self._is_slow(step):
                self._start_capture(figures.step, step, current)
            self._step_ms.append(step)
        compute = sum(part or 0.0 for part in (figures.forward_ms, figures.backward_ms, figures.optimizer_ms))
        wait = max(0.0, step - data - compute)
        self._unprinted.append({"step": step, "data": data, "compute": compute, "wait": wait})
        self._last, self._loader = figures.step, self._loader.plus(figures.loader)

    def _print(self) -> None:
        """Print the means since the last line, and which of them has grown."""
        self._printed_at = perf_counter()
        if not self._unprinted:
            return
        now = {name: fmean(step[name] for step in self._unprinted) for name in self._unprinted[0]}
        parts = ", ".join(f"{name} {value:.1f}" for name, value in now.items() if name != "step")
        _say(f"step {self._last}: {now['step']:.1f} ms ({parts}), mean of {len(self._unprinted)}")
        if text := loader_text(self._loader.batches_per_s, self._loader.empty_fraction):
            _say(f"loader: {text}")
        self._loader = LoaderCounts()
        for name, value in now.items():
            least = self._least.setdefault(name, value)
            if value > GROWN * least and value - least > NOTICED * self._least["step"]:
                _say(f"warning: {name} takes {value:.1f} ms a step, {least:.1f} before")
            self._least[name] = min(least, value)
        self._unprinted.clear()

    def _is_slow(self, step_ms: float) -> bool:
        """Return whether to record a step because of this one; the program may record one itself."""
        is_slow = len(self._step_ms) >= KNOWN_STEPS and step_ms > SLOW * median(self._step_ms)
        return is_slow and not torch.autograd.profiler._is_profiler_enabled

    def _start_capture(self, slow: int, step_ms: float, current: int) -> None:
        """Record the step after the current one, in which the profiler warms up."""
        self._traces -= 1
        path = Path(f"slow-step-{slow}-rank{self._rank}.json.gz")
        usual = median(self._step_ms)
        _say(f"step {slow} took {step_ms:.1f} ms, others {usual:.1f}; {path} gets step {current + 1}")
        self._capture, self._capture_ends = TorchCapture(current + 1, current + 2, path), current + 2
        self._capture.before(current)

    def _end_capture(self) -> None:
        if self._capture is not None:
            self._capture.close()
            self._capture = None


def _say(text: str) -> None:
    sys.stderr.write(f"instrument: {text}\n")
    sys.stderr.flush()
