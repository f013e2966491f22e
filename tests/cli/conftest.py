"""The command as a fixture, and a copy of a capture that a test may change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.captures import sample
from tests.cli.command import traceview

__all__ = ["traceview"]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return Path(shutil.copyfile(sample("dual.sqlite"), tmp_path / "report.sqlite"))
