"""What the tables say of the machine: display adapters, slices of a GPU, integrated GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import change
from traceview.captures.info import describe
from traceview.pipeline import open_trace

ADAPTER = "Microsoft Basic Render Driver"
INSERT = "INSERT INTO TARGET_INFO_GPU (vmId, id, name, cuDevice, smCount) VALUES (0, 9, '{}', {}, {})"


@pytest.mark.parametrize(("ordinal", "sms"), [("NULL", "NULL"), ("0", "0"), ("1", "NULL")])
def test_display_adapters_are_no_gpus(report: Path, ordinal: str, sms: str) -> None:
    """Windows lists one without SMs beside the GPU."""
    intact = open_trace(report).devices
    change(report, INSERT.format(ADAPTER, ordinal, sms))
    assert open_trace(report).devices.equals(intact)
    assert describe(report).gpus == ("NVIDIA H200",)


def test_adapter_alone_names_no_gpu(report: Path) -> None:
    """Then the name is not known, and not guessed."""
    change(report, "DELETE FROM TARGET_INFO_GPU", INSERT.format(ADAPTER, "0", "0"))
    assert open_trace(report).devices["name"].to_list() == [""]
    assert describe(report).gpus == ()


def test_gpu_without_a_number_of_sms_stays_one(report: Path) -> None:
    """Some exports do not state it."""
    change(report, "UPDATE TARGET_INFO_GPU SET smCount = NULL")
    assert open_trace(report).devices["name"].to_list() == ["NVIDIA H200"]


def test_slice_of_a_gpu_has_no_limits_of_the_whole(report: Path) -> None:
    """TARGET_INFO_GPU describes the whole GPU. Made by hand: no capture with MIG was available."""
    process = open_trace(report).devices["processes"][0][0]
    table = "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER, uuid TEXT)"
    change(report, table, f"INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, {process}, 'MIG-4e0a')")
    (device,) = open_trace(report).devices.to_dicts()
    assert device["name"] == "NVIDIA H200 (MIG slice)"
    assert device["sm_count"] is device["registers_per_sm"] is None


def test_integrated_gpu_is_called_so(report: Path) -> None:
    """As on Jetson, where the memory of GPU and host is the same."""
    change(report, "UPDATE TARGET_INFO_GPU SET isDiscrete = 0")
    assert describe(report).gpus == ("NVIDIA H200 (integrated)",)
