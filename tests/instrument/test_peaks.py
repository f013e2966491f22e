"""The two tables of peaks: traceview and instrument do not import each other, so a test keeps them equal."""

from __future__ import annotations

import pytest

from instrument.monitor import peaks as of_instrument
from traceview.model import peaks

NAMES = {
    "NVIDIA H200": "H200", "NVIDIA H100 80GB HBM3": "H100", "NVIDIA A100-SXM4-80GB": "A100", "Tesla T4": "T4",
    "NVIDIA GeForce RTX 4090": "RTX 4090", "Tesla V100-SXM2-16GB": "V100", "NVIDIA GH200 480GB": "GH200",
}  # fmt: skip


def test_tables_agree() -> None:
    theirs = {(row.half, row.tf32, row.fp32, row.bf16) for row in of_instrument.PEAKS}
    assert theirs <= {(row.half, row.tf32, row.fp32, row.bf16) for row in peaks.PEAKS}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32", "fp32"])
def test_lookups_agree(name: str, precision: str) -> None:
    assert peaks.gpu_peaks(name) is not None
    assert peaks.peak_flops(name, precision) == of_instrument.peak_flops(name, precision)


def test_other_devices_have_no_peak() -> None:
    for name in ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H20", ""):
        assert peaks.peak_flops(name, "bf16") is None
    assert peaks.peak_flops("NVIDIA A100-SXM4-40GB", "fp8") is None
    assert peaks.peak_flops("NVIDIA H200", "fp64", tensor_core=False) == 34 * 10**12
