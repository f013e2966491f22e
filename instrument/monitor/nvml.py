"""What NVML says of the GPU: power, utilisation, memory used; without pynvml or a GPU, why nothing was measured.

NVML averages: power over about a second on most GPUs, utilisation over a sixth of a second to a second. So a reading is
of the last steps, not of one. A call takes its time, so `BackgroundMeter` reads beside the training, not in it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

NAMES = ("power_w", "utilisation_percent", "memory_used_bytes")


@dataclass(frozen=True, slots=True)
class Reading:
    """What one GPU did of late; None is not measured.

    Attributes:
        power_w: what it draws.
        utilisation_percent: share of time in which any kernel ran.
        memory_used_bytes: by all processes, with what the driver holds.
        not_measured: attribute -> why it is None.
    """

    power_w: float | None = None
    utilisation_percent: float | None = None
    memory_used_bytes: int | None = None
    not_measured: Mapping[str, str] = field(default_factory=dict)


def unmeasured(reason: str) -> Reading:
    """Return a reading of nothing, and why."""
    return Reading(not_measured=dict.fromkeys(NAMES, reason))


class Meter(Protocol):
    """Something that reads a GPU's figures."""

    def read(self) -> Reading:
        """Return the figures as they are now."""

    def close(self) -> None:
        """Let go of the library."""


class NoMeter:
    """Stands where nothing can be measured.

    Args:
        reason: why.
    """

    def __init__(self, reason: str) -> None:
        self._reading = unmeasured(reason)

    def read(self) -> Reading:
        """Return no figures, and the reason."""
        return self._reading

    def close(self) -> None:
        """Do nothing."""


class GpuMeter:
    """Reads one GPU.

    Args:
        library: pynvml, initialised.
        handle: the GPU's.
    """

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def read(self) -> Reading:
        """Return the figures; one that this GPU does not give, such as a MIG slice's power, is None with its reason."""
        missing: dict[str, str] = {}
        power = self._ask("power_w", missing, lambda: self._library.nvmlDeviceGetPowerUsage(self._handle) / 1000)
        busy = self._ask(
            "utilisation_percent", missing, lambda: float(self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        )
        used = self._ask(
            "memory_used_bytes", missing, lambda: int(self._library.nvmlDeviceGetMemoryInfo(self._handle).used)
        )
        return Reading(power, busy, used, missing)

    def close(self) -> None:
        """Shut the library down."""
        self._library.nvmlShutdown()

    def _ask(self, name: str, missing: dict[str, str], question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._library.NVMLError as failure:
            missing[name] = f"NVML: {failure}"
            return None


def open_meter(uuid: str | None, *, library: Any = None) -> Meter:
    """Return a meter for the GPU with this UUID, or one that says why there is none.

    A GPU's number differs between NVML and CUDA_VISIBLE_DEVICES; its UUID does not.

    Args:
        uuid: with or without "GPU-" or "MIG-" in front, as `device_uuid` says it; None for a run without a GPU.
        library: pynvml, or what stands in for it; None imports it.
    """
    if uuid is None:
        return NoMeter("the run uses no NVIDIA GPU, or torch does not say its UUID")
    if library is None:
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            return NoMeter("the package nvidia-ml-py is not installed")
    try:
        library.nvmlInit()
    except library.NVMLError as failure:
        return NoMeter(f"NVML: {failure}")
    return _find(library, uuid.removeprefix("GPU-").removeprefix("MIG-"))


def _find(library: Any, uuid: str) -> Meter:
    for prefix in ("GPU-", "MIG-"):
        try:
            return GpuMeter(library, library.nvmlDeviceGetHandleByUUID(f"{prefix}{uuid}"))
        except library.NVMLError as failure:
            reason = f"NVML: {failure}"
    library.nvmlShutdown()
    return NoMeter(reason)


def device_uuid(index: int | None) -> str | None:
    """Return the UUID of a GPU as torch numbers it, or None where torch cannot say it.

    Args:
        index: of the CUDA device; None for a run without one.
    """
    if index is None:
        return None
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return None
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else str(uuid)


class BackgroundMeter:
    """Reads a meter on a thread of its own: `ask` never waits, `latest` is the last reading that is done.

    Args:
        meter: closed with this.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nvml")
        self._asked: Future[Reading] | None = None
        self._latest = unmeasured("nothing was read yet")

    def ask(self) -> None:
        """Begin a reading, unless one is under way."""
        if self._asked is None or self._asked.done():
            self._latest = self.latest()
            self._asked = self._thread.submit(self._meter.read)

    def latest(self) -> Reading:
        """Return the last reading that is done."""
        return self._asked.result() if self._asked is not None and self._asked.done() else self._latest

    def close(self) -> None:
        """End the thread after the reading under way, and close the meter."""
        self._thread.shutdown(wait=True)
        self._meter.close()
