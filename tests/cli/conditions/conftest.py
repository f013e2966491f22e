"""The fleets of the fleet tests."""

from tests.fleet.conftest import slow_gpu

__all__ = ["slow_gpu"]
