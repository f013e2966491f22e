"""Power and utilisation of a GPU from NVML, or the reason why they are not available.

NVML averages power over about one second on most GPUs, and utilisation over 1/6 to 1 second, so a reading covers
several steps.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

NAMES = ("power_w", "utilisation_percent")
_NO_HANDLE: Any = None


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


class Meter:
    """Reads one GPU through NVML.

    Args:
        uuid: the UUID of the GPU, with or without the prefix "GPU-" or "MIG-", because numbers of GPUs can differ
            between NVML and CUDA; None for a run without a GPU.
        library: pynvml or a replacement for tests; None imports it.

    Attributes:
        reason: why nothing can be measured; None if something can.
    """

    def __init__(self, uuid: str | None, *, library: Any = None) -> None:
        self._library, self._handle = library, _NO_HANDLE
        self.reason = self._open(uuid)

    def read(self) -> Reading:
        """Return the current values; a value this GPU does not provide, such as the power of a MIG slice, is None."""
        if self.reason is not None:
            return Reading(not_measured=dict.fromkeys(NAMES, self.reason))
        missing: dict[str, str] = {}
        power = self._query("power_w", missing, lambda: self._library.nvmlDeviceGetPowerUsage(self._handle) / 1000)
        busy = self._query(
            "utilisation_percent", missing, lambda: float(self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        )
        return Reading(power, busy, missing)

    def close(self) -> None:
        """Release NVML."""
        if self._handle is not None:
            self._library.nvmlShutdown()

    def _open(self, uuid: str | None) -> str | None:
        """Open the GPU; return why that is not possible, or None."""
        if uuid is None:
            return "the run uses no NVIDIA GPU, or torch does not report its UUID"
        try:
            self._library = self._library or importlib.import_module("pynvml")
            self._library.nvmlInit()
        except ImportError:
            return "the package nvidia-ml-py is not installed"
        except self._library.NVMLError as failure:
            return f"NVML: {failure}"
        for prefix in ("GPU-", "MIG-"):
            try:
                bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
                self._handle = self._library.nvmlDeviceGetHandleByUUID(f"{prefix}{bare}")
                return None
            except self._library.NVMLError as failure:
                reason = f"NVML: {failure}"
        self._library.nvmlShutdown()
        return reason

    def _query(self, name: str, missing: dict[str, str], call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._library.NVMLError as failure:
            missing[name] = f"NVML: {failure}"
            return None


def device_uuid(index: int | None) -> str | None:
    """Return the UUID of a CUDA device, or None if torch does not report it or there is none."""
    torch = importlib.import_module("torch")
    if index is None or not torch.cuda.is_available():
        return None
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else str(uuid)
