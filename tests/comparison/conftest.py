"""One browser for the page of a comparison, closed behind the folder (see tests/report/conftest.py)."""

from __future__ import annotations

from tests.report.conftest import browser

__all__ = ["browser"]
