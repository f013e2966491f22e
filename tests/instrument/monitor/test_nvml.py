from __future__ import annotations

import importlib
import types
from types import SimpleNamespace

import pytest

from instrument.monitor.nvml import (
    NAMES,
    Meter,
    Reading,
    device_uuid,
)

UUID = "11111111-2222-3333-4444-555555555555"


class NVMLError(Exception):
    pass


class Library:
    """Stands in for pynvml: two GPUs; it counts how often it is initialised and shut down."""

    NVMLError = NVMLError

    def __init__(self, *gpus: str, driver: bool = True, power: bool = True) -> None:
        self.gpus, self.driver, self.power, self.open = gpus, driver, power, 0

    def nvmlInit(self) -> None:  # noqa: N802 - the library's own names
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        if uuid not in self.gpus:
            raise NVMLError("Not Found")
        return self.gpus.index(uuid)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        if not self.power:
            raise NVMLError("Not Supported")
        return 512_345 + handle

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=90 + handle, memory=10)


@pytest.mark.parametrize("uuid", [UUID, f"GPU-{UUID}"])
def test_gpu_is_found_by_uuid(uuid: str) -> None:
    library = Library("GPU-another", f"GPU-{UUID}")
    meter = Meter(uuid, library=library)
    assert meter.read() == Reading(512.346, 91.0)
    meter.close()
    assert library.open == 0


def test_mig_slice_has_a_reason_for_missing_power() -> None:
    meter = Meter(UUID, library=Library(f"MIG-{UUID}", power=False))
    assert meter.read() == Reading(None, 90.0, {"power_w": "NVML: Not Supported"})


@pytest.mark.parametrize(
    ("uuid", "library", "reason"),
    [
        (None, Library(), "the run uses no NVIDIA GPU, or torch does not report its UUID"),
        (UUID, Library(driver=False), "NVML: Driver Not Loaded"),
        (UUID, Library("GPU-another"), "NVML: Not Found"),
    ],
)
def test_missing_measurement_has_a_reason(uuid: str | None, library: Library, reason: str) -> None:
    meter = Meter(uuid, library=library)
    assert meter.read() == Reading(None, None, dict.fromkeys(NAMES, reason))
    meter.close()
    assert library.open == 0


def test_missing_package_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> types.ModuleType:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    reading = Meter(UUID).read()
    assert set(reading.not_measured.values()) == {"the package nvidia-ml-py is not installed"}


def test_run_without_a_gpu_has_no_uuid() -> None:
    assert device_uuid(None) is None


@pytest.mark.gpu
def test_real_gpu_has_power_and_utilisation() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("pynvml")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    meter = Meter(device_uuid(torch.cuda.current_device()))
    assert meter.reason is None
    reading = meter.read()
    meter.close()
    assert reading.not_measured == {}
    assert reading.power_w is not None
    assert 10 < reading.power_w < 2000
    assert reading.utilisation_percent is not None
    assert 0 <= reading.utilisation_percent <= 100


@pytest.mark.gpu
def test_visible_gpus_match_torch() -> None:
    torch = pytest.importorskip("torch")
    pynvml = pytest.importorskip("pynvml")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    pynvml.nvmlInit()
    for index in range(torch.cuda.device_count()):
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{device_uuid(index)}")
        total = pynvml.nvmlDeviceGetMemoryInfo(handle).total
        assert total >= torch.cuda.get_device_properties(index).total_memory
        assert pynvml.nvmlDeviceGetName(handle) == torch.cuda.get_device_name(index)
    pynvml.nvmlShutdown()
