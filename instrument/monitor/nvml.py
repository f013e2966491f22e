"""Power and utilisation of a GPU from NVML, or the reason why they are not available.

NVML averages power over about one second on most GPUs, and utilisation over 1/6 to 1 second, so a reading covers
several steps. NVML calls are slow, so `BackgroundMeter` runs them on its own thread.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

NAMES = ("power_w", "utilisation_percent")


@dataclass(frozen=True, slots=True)
class Reading:
    """Recent averages of one GPU. None means not measured.

    Attributes:
        power_w: power draw.
        utilisation_percent: percentage of time in which any kernel ran.
        not_measured: attribute -> why it is None.
    """

    power_w: float | None = None
    utilisation_percent: float | None = None
    not_measured: Mapping[str, str] = field(default_factory=dict)


def empty_reading(reason: str) -> Reading:
    """Return a reading without values, with the reason."""
    return Reading(not_measured=dict.fromkeys(NAMES, reason))


class Meter(Protocol):
    """Reads the current values of a GPU."""

    def read(self) -> Reading:
        """Return the current values."""

    def close(self) -> None:
        """Release the library."""


class NoMeter:
    """A meter that measures nothing.

    Args:
        reason: why nothing can be measured.
    """

    def __init__(self, reason: str) -> None:
        self._reading = empty_reading(reason)

    def read(self) -> Reading:
        """Return a reading without values."""
        return self._reading

    def close(self) -> None:
        """Do nothing."""


class GpuMeter:
    """Reads one GPU through NVML.

    Args:
        library: pynvml, initialised.
        handle: NVML handle of the GPU.
    """

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def read(self) -> Reading:
        """Return the current values; a value this GPU does not provide, such as the power of a MIG slice, is None."""
        missing: dict[str, str] = {}
        power = self._query("power_w", missing, lambda: self._library.nvmlDeviceGetPowerUsage(self._handle) / 1000)
        busy = self._query(
            "utilisation_percent", missing, lambda: float(self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        )
        return Reading(power, busy, missing)

    def close(self) -> None:
        """Shut down NVML."""
        self._library.nvmlShutdown()

    def _query(self, name: str, missing: dict[str, str], call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._library.NVMLError as failure:
            missing[name] = f"NVML: {failure}"
            return None


def open_meter(uuid: str | None, *, library: Any = None) -> Meter:
    """Return a meter for the GPU with this UUID, or a `NoMeter` with the reason.

    GPU numbers can differ between NVML and CUDA; UUIDs do not.

    Args:
        uuid: the UUID, with or without the prefix "GPU-" or "MIG-"; None for a run without a GPU.
        library: pynvml or a replacement for tests; None imports it.
    """
    if uuid is None:
        return NoMeter("the run uses no NVIDIA GPU, or torch does not report its UUID")
    if library is None:
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            return NoMeter("the package nvidia-ml-py is not installed")
    try:
        library.nvmlInit()
    except library.NVMLError as failure:
        return NoMeter(f"NVML: {failure}")
    return _open_by_uuid(library, uuid.removeprefix("GPU-").removeprefix("MIG-"))


def _open_by_uuid(library: Any, uuid: str) -> Meter:
    for prefix in ("GPU-", "MIG-"):
        try:
            return GpuMeter(library, library.nvmlDeviceGetHandleByUUID(f"{prefix}{uuid}"))
        except library.NVMLError as failure:
            reason = f"NVML: {failure}"
    library.nvmlShutdown()
    return NoMeter(reason)


def device_uuid(index: int | None) -> str | None:
    """Return the UUID of a GPU, or None if torch does not report it.

    Args:
        index: number of the CUDA device; None for a run without a GPU.
    """
    if index is None:
        return None
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return None
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else str(uuid)


class BackgroundMeter:
    """Reads a meter on a background thread; no method except `close` waits.

    Args:
        meter: the meter, which `close` closes too.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nvml")
        self._pending: Future[Reading] | None = None
        self._latest = empty_reading("no reading is complete yet")

    def start_reading(self) -> None:
        """Start a reading, unless one is in progress."""
        if self._pending is None or self._pending.done():
            self._latest = self.latest()
            self._pending = self._thread.submit(self._meter.read)

    def latest(self) -> Reading:
        """Return the last completed reading."""
        return self._pending.result() if self._pending is not None and self._pending.done() else self._latest

    def close(self) -> None:
        """Stop the thread after the current reading and close the meter."""
        self._thread.shutdown(wait=True)
        self._meter.close()
