"""A fleet as one HTML page: what to change first, every rank's breakdown beside its heat map, every table."""

from __future__ import annotations

from traceview.report.fleet.page import render

__all__ = ["render"]
