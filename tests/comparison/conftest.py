"""One browser for the page of a comparison, closed behind the folder (see tests/html/conftest.py)."""

from __future__ import annotations

from tests.html.conftest import browser

__all__ = ["browser"]
