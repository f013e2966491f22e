"""The command as a fixture."""

from tests.cli.command import traceview

__all__ = ["traceview"]
