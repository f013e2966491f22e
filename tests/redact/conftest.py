"""The command as a fixture."""

from __future__ import annotations

from tests.cli.command import traceview

__all__ = ["traceview"]
