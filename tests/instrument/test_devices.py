"""The device that parts of the package use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import instrument
from instrument import devices
from instrument.devices import usable_device
from instrument.errors import ConfigError


@pytest.fixture(autouse=True)
def _fresh_caches() -> Iterator[None]:
    for cached in (devices._has_cuda, devices._warn_once):
        cached.cache_clear()
    yield
    for cached in (devices._has_cuda, devices._warn_once):
        cached.cache_clear()


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("_no_gpu")
def test_cuda_without_a_gpu_is_the_cpu_with_one_warning() -> None:
    with pytest.warns(UserWarning, match="device cuda is not usable: torch finds no CUDA GPU; instrument uses the CPU"):
        assert usable_device("cuda") == torch.device("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert usable_device("cuda") == usable_device("cpu") == torch.device("cpu")


@pytest.mark.usefixtures("_no_gpu")
def test_strict_raises() -> None:
    with pytest.raises(ConfigError, match="device cuda:1 is not usable"):
        usable_device("cuda:1", strict=True)


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.filterwarnings("ignore:device cuda is not usable")
def test_parts_work_without_a_gpu() -> None:
    batches = [torch.ones(2), torch.zeros(2)]
    with instrument.PrefetchLoader(batches, "cuda") as loader:
        assert [batch.tolist() for batch in loader] == [[1, 1], [0, 0]]
    streams, meter = instrument.Streams("cuda", copy=0), instrument.StepMeter("cuda")
    with streams["copy"]:
        meter.begin(0)
    assert instrument.SyncPolicy(1).losses("cuda").log(0, torch.tensor(2.0)) == [(0, 2.0)]


def test_usable_gpu_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert usable_device("cuda:1") == torch.device("cuda:1")


def test_every_public_name_is_listed_and_imported() -> None:
    assert set(instrument.__all__) <= set(dir(instrument)) and not hasattr(instrument, "nothing")
    assert all(getattr(instrument, name) is not None for name in instrument.__all__)
