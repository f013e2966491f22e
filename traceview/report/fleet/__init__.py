"""Reports of a fleet: page, terminal and JSON."""

from __future__ import annotations

from traceview.report.fleet.page import render

__all__ = ["render"]
