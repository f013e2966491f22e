"""A comparison as one HTML page: the verdict, the timelines aligned and locked together, every table."""

from __future__ import annotations

from traceview.report.compare_html.page import render

__all__ = ["render"]
