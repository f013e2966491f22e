"""A small capture that a test may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fuzz.corpus import thinned


@pytest.fixture(scope="session")
def thinned_dual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinned("dual", 24, tmp_path_factory.mktemp("corpus") / "report.sqlite")


@pytest.fixture
def report(thinned_dual: Path, tmp_path: Path) -> Path:
    """Return a thinned sample, alone in its folder."""
    (tmp_path / "report").mkdir()
    return Path(shutil.copyfile(thinned_dual, tmp_path / "report" / "report.sqlite"))
