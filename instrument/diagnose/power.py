"""Power and utilisation over a stage: NVML is read on a thread of its own, beside what is timed."""

from __future__ import annotations

import threading
import time
from statistics import fmean

from instrument.monitor.nvml import Meter, Reading

SETTLING_S = 1.0  # NVML averages over about a second: until then it speaks of the stage before
EVERY_S = 0.1
ENOUGH = 10
FIGURES = ("power_w", "utilisation_percent")


class Readings:
    """Reads a meter from its start to its end; nothing where the meter measures nothing.

    Args:
        meter: not closed with this.
        settling: seconds that are left out at the start.
        every: seconds between readings.
    """

    def __init__(self, meter: Meter, *, settling: float = SETTLING_S, every: float = EVERY_S) -> None:
        self._meter, self._settling, self._every = meter, settling, every
        self._first = meter.read()
        self._taken: list[Reading] = []
        self._begun = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)

    def __enter__(self) -> Readings:
        if self._measures():
            self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def enough(self) -> bool:
        """Return whether there is as much as a mean needs, or nothing to wait for."""
        return not self._thread.is_alive() or len(self._taken) >= ENOUGH

    def means(self) -> tuple[dict[str, float], dict[str, str]]:
        """Return the mean of each figure of FIGURES, and why there is none of the others."""
        found: dict[str, float] = {}
        missing: dict[str, str] = {}
        for name in FIGURES:
            values = [value for reading in tuple(self._taken) if (value := getattr(reading, name)) is not None]
            if values:
                found[name] = fmean(values)
            else:
                missing[name] = self._first.not_measured.get(name, "the stage was over before NVML had a figure for it")
        return found, missing

    def _measures(self) -> bool:
        return any(getattr(self._first, name) is not None for name in FIGURES)

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            reading = self._meter.read()
            if time.monotonic() - self._begun >= self._settling:
                self._taken.append(reading)
