"""Peak rates by the name of a GPU, for traceview and for the trainer's MFU."""

from __future__ import annotations

import pytest

from traceview.model.peaks import PEAKS, peak_flops


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("NVIDIA H200", "bf16", 989e12),
        ("NVIDIA H200", "fp32", 67e12),
        ("NVIDIA H100 80GB HBM3", "fp16", 989e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("NVIDIA A100-PCIE-40GB", "tf32", 156e12),
        ("NVIDIA A100 80GB PCIe", "fp32", 19.5e12),
        ("NVIDIA L4", "bf16", 121e12),
        ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2e12),
        ("Tesla T4", "fp16", 65e12),
        ("Tesla T4", "bf16", None),
        ("Tesla V100-SXM2-16GB", "fp16", 125e12),
        ("", "bf16", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None),
        ("NVIDIA GH200 480GB MIG 1g.12gb", "bf16", None),
        ("NVIDIA L400", "bf16", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", None),
        ("NVIDIA H20", "bf16", None),
        ("NVIDIA A100-SXM4-40GB", "fp8", None),
        ("NVIDIA H200", "fp64", 67e12),
    ],
)
def test_peak_of_a_gpu(name: str, precision: str, expected: float | None) -> None:
    assert peak_flops(name, precision) == expected


def test_lower_precision_has_no_lower_peak() -> None:
    for peak in PEAKS:
        rates = [rate for rate in (peak.half, peak.tf32, peak.fp32) if rate is not None]
        assert rates == sorted(rates, reverse=True), peak.name
    assert peak_flops("NVIDIA H200", "fp64", tensor_core=False) == 34 * 10**12
