"""A capture whose next change would show, a cache of its own, and the command."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from tests.captures import sample
from tests.cli.command import traceview
from traceview.cache import Store
from traceview.cache.content import State

__all__ = ["settle", "traceview"]


def settle(report: Path) -> Path:
    """Wait until the next change of a file would show in its times."""
    while not (state := State.of(report)) or not state.settled():
        time.sleep(0.01)
    return report


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return settle(Path(shutil.copyfile(sample("dual.sqlite"), tmp_path / "report.sqlite")))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")
