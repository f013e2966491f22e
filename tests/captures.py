"""Paths of the real captures and of the samples that replace them."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceview.model.analysis import Analysis

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
    """Return a capture of the shared folder, or the sample with the same events.

    Skip the test if there is neither: a clone does not contain the public captures.
    """
    path = CAPTURES / name
    stand_in = SAMPLES / name.removeprefix("h200_")
    return stand_in if name in H200 and not path.is_file() else original(name)


def original(name: str) -> Path:
    """Return an unredacted capture of the shared folder; skip the test if it is missing."""
    path = CAPTURES / name
    if not path.is_file():
        import pytest  # scripts/fuzz runs without pytest

        pytest.skip(f"needs {name} in {CAPTURES} (set TRACEVIEW_CAPTURES to the folder that has it)")
    return path


def change(path: Path, *statements: str) -> Path:
    """Execute statements in a database, which is created if it is missing, and return its path."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return path


def sample(name: str) -> Path:
    """Return a sample, which every clone contains."""
    path = SAMPLES / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: a clone contains every sample")
    return path


@cache
def analyzed(path: Path, **options: Any) -> Analysis:
    """Return the analysis of a capture or sample, made once for all tests of a process.

    A test that patches what an analysis measures calls `analyze` instead.
    """
    from traceview.pipeline import analyze  # needs polars, and tests of instrument alone run without it

    return analyze(path, **options)
