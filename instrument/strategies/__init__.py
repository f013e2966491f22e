"""Strategies: how batches reach the device and how a step is computed.

To add one, write a module with a subclass of `Strategy` and add an entry to `instrument.config.strategies.STRATEGIES`.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from instrument.config.strategies import STRATEGIES
from instrument.strategies.base import Strategy


def strategy_class(name: str) -> type[Strategy]:
    """Import and return the strategy that `STRATEGIES` lists under `name`."""
    module, _, attribute = STRATEGIES[name].path.rpartition(".")
    return cast("type[Strategy]", getattr(import_module(f"instrument.strategies.{module}"), attribute))
