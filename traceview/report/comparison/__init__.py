"""A comparison as one HTML page: the verdict, the timelines aligned and locked together, every table."""

from __future__ import annotations

from traceview.report.comparison.page import render

__all__ = ["render"]
