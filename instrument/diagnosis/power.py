"""Mean power and utilisation during a stage, read from NVML on a background thread."""

from __future__ import annotations

import threading
import time
from statistics import fmean

from instrument.monitor.nvml import Meter, Reading

SETTLING_S = 1.0  # NVML averages over about one second, so earlier readings include the previous stage
INTERVAL_S = 0.1
ENOUGH_READINGS = 10
FIGURES = ("power_w", "utilisation_percent")


class PowerReadings:
    """Context manager that reads a meter during its block; it reads nothing if the meter measures nothing.

    Args:
        meter: the meter, which stays open.
        settling: seconds at the start whose readings are discarded.
        every: seconds between readings.
    """

    def __init__(self, meter: Meter, *, settling: float = SETTLING_S, every: float = INTERVAL_S) -> None:
        self._meter, self._settling, self._every = meter, settling, every
        self._first = meter.read()
        self._readings: list[Reading] = []
        self._start = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)

    def __enter__(self) -> PowerReadings:
        if self._measures():
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def is_complete(self) -> bool:
        """Return whether there are enough readings for a mean, or nothing is measured."""
        return not self._thread.is_alive() or len(self._readings) >= ENOUGH_READINGS

    def means(self) -> tuple[dict[str, float], dict[str, str]]:
        """Return the mean of each measured value of FIGURES, and the reasons for the others."""
        means: dict[str, float] = {}
        missing: dict[str, str] = {}
        for name in FIGURES:
            values = [value for reading in tuple(self._readings) if (value := getattr(reading, name)) is not None]
            if values:
                means[name] = fmean(values)
            else:
                missing[name] = self._first.not_measured.get(name, "the stage ended before NVML had a value")
        return means, missing

    def _measures(self) -> bool:
        return any(getattr(self._first, name) is not None for name in FIGURES)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            reading = self._meter.read()
            if time.monotonic() - self._start >= self._settling:
                self._readings.append(reading)
