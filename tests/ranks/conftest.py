"""Fleets of real reports, each read once per session."""

from __future__ import annotations

import pytest

from tests.captures import sample
from tests.ranks.reports import merged, ranks_of
from tests.report.conftest import browser
from traceview.model.fleet import Fleet

__all__ = ["browser"]


@pytest.fixture(scope="session")
def slow_host() -> Fleet:
    return merged(ranks_of("slowhost"))


@pytest.fixture(scope="session")
def slow_gpu() -> Fleet:
    return merged(ranks_of("slowgpu"))


@pytest.fixture(scope="session")
def two_in_one() -> Fleet:
    return merged([sample("ddp2.sqlite")])
