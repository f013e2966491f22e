"""Reports of a comparison: page, terminal, Markdown and JSON."""

from __future__ import annotations

from traceview.report.comparison.page import render

__all__ = ["render"]
