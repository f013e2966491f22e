"""A copy of a capture that a test may change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.captures import sample


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return Path(shutil.copyfile(sample("dual.sqlite"), tmp_path / "report.sqlite"))
