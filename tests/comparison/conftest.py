"""Share one browser between the tests of this folder (see tests/report/conftest.py)."""

from __future__ import annotations

from tests.report.conftest import browser

__all__ = ["browser"]
