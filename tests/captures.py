"""Where the real captures are, and what stands in for them on a machine that lacks them."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CAPTURES = Path(os.environ.get("TRACEVIEW_CAPTURES") or ROOT.parent / "shared" / "captures")
SAMPLES = ROOT / "samples"

H200 = [
    "h200_serial.sqlite",
    "h200_dual.sqlite",
    "h200_quad.sqlite",
    "h200_ddp2.sqlite",
    "h200_cudagraph.sqlite",
]
PUBLIC = [
    "public/nsys2021.2_no_metadata.sqlite",
    "public/nsys2022.2_mpi_empty_tables.sqlite",
    "public/nsys2022.4_nvtx_textid_only.sqlite",
    "public/nsys2023.4_arm64_jacobi.sqlite",
    "public/nsys2024.5_hpc_node.sqlite",
    "public/nsys2026.2_2gpu_nccl.sqlite",
]
ALL = [*H200, *PUBLIC]


def shared(name: str) -> Path:
    """Return a capture of the shared folder, or else the sample that holds the same events.

    Skips the test where neither is there: the public captures are no part of a clone.
    """
    path = CAPTURES / name
    stand_in = SAMPLES / name.removeprefix("h200_")
    return stand_in if name in H200 and not path.is_file() else original(name)


def original(name: str) -> Path:
    """Return a capture of the shared folder itself, unredacted; skip the test where it is absent."""
    path = CAPTURES / name
    if not path.is_file():
        import pytest  # scripts/fuzz does without

        pytest.skip(f"needs {name} in {CAPTURES} (set TRACEVIEW_CAPTURES to the folder that has it)")
    return path


def sample(name: str) -> Path:
    """Return a capture that every clone has; its absence is a broken clone, hence a failure."""
    path = SAMPLES / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: a clone holds every sample")
    return path
