"""The ways to bring batches to a GPU and compute on them: one file each, one line in STRATEGIES."""

from __future__ import annotations

from collections.abc import Mapping

from instrument.config.schema import StrategyName
from instrument.strategies.base import Strategy
from instrument.strategies.graph import Graph
from instrument.strategies.pinned import Pinned
from instrument.strategies.prefetch import Prefetch
from instrument.strategies.serial import Serial
from instrument.strategies.staged import Staged

__all__ = ["STRATEGIES", "Strategy"]

STRATEGIES: Mapping[StrategyName, type[Strategy]] = {
    "serial": Serial,
    "pinned": Pinned,
    "prefetch": Prefetch,
    "staged": Staged,
    "graph": Graph,
}
