"""Occupancy. The figures are those of cudaOccupancyMaxActiveBlocksPerMultiprocessor on an H200."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from traceview.measure.kernels import SmLimits, occupancy

H200 = SmLimits(sms=132, warps=64, registers=65536, shared_bytes=233472, blocks=32, capability=90)


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "blocks", "limit"),
    [
        (256, 32, 0, 8, None),
        (1024, 32, 0, 2, None),
        (32, 16, 0, 32, "blocks"),
        (128, 255, 0, 2, "registers"),
        (384, 168, 0, 1, "registers"),
        (256, 32, 49152, 4, "shared_memory"),
        (128, 32, 231424, 1, "shared_memory"),
        (768, 32, 0, 2, "threads"),
    ],
)
def test_resident_blocks(threads: int, registers: int, shared_bytes: int, blocks: int, limit: str | None) -> None:
    result = occupancy(H200, threads, registers, shared_bytes)
    assert result is not None
    assert (result.blocks, result.limit) == (blocks, limit)
    assert result.fraction == blocks * -(-threads // 32) / 64


def test_impossible_launches_have_no_occupancy() -> None:
    assert occupancy(H200, 0, 32, 0) is None
    assert occupancy(H200, 128, 32, 1 << 30) is None


def test_equals_cuda_on_an_h200() -> None:
    """benchmarks/studies/occupancy.cu asked CUDA for launches of eight kernels."""
    answers = json.loads(Path(__file__).with_name("h200_occupancy.json").read_text())
    assert len(answers) > 200
    for threads, registers, shared_bytes, blocks in answers:
        result = occupancy(H200, threads, registers, shared_bytes)
        assert (0 if result is None else result.blocks) == blocks
