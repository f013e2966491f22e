"""The fleets of the fleet tests."""

from tests.ranks.conftest import slow_gpu

__all__ = ["slow_gpu"]
