"""Strategies: how batches reach the device and how a step is computed.

To add one, write a module with a subclass of `Strategy` and add a line to `STRATEGIES`. This module does not import
torch, because the configuration reads the names from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from instrument.strategies.base import Strategy

__all__ = ["STRATEGIES", "strategy_class"]

STRATEGIES: Mapping[str, str] = {
    "serial": "instrument.strategies.serial.Serial",
    "pinned": "instrument.strategies.pinned.Pinned",
    "prefetch": "instrument.strategies.prefetch.Prefetch",
    "staged": "instrument.strategies.staged.Staged",
    "graph": "instrument.strategies.graph.Graph",
}


def strategy_class(name: str) -> type[Strategy]:
    """Import and return the strategy that `STRATEGIES` lists under `name`."""
    module, _, attribute = STRATEGIES[name].rpartition(".")
    return cast("type[Strategy]", getattr(import_module(module), attribute))
