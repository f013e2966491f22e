"""The strategies that a configuration can name, and what each does and supports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a strategy does and supports.

    Attributes:
        path: its module in `instrument.strategies` and its class, as "module.Class".
        pins: which host batches the loader makes in pinned memory: "none", "kept" (those used for several steps) or
            "all".
        copies_ahead: whether the next batch is loaded and copied while the current one computes.
        captures_step: whether a step is one CUDA graph.
        blocks_host: whether the host waits inside each step, whatever the sync policy.
        several_processes: whether it supports several processes (torchrun).
        splits_batches: whether a batch that does not fit into memory can be run again in parts.
        sync_interval: number of steps between waits under the sync policy "auto".
    """

    path: str
    pins: Literal["none", "kept", "all"] = "none"
    copies_ahead: bool = False
    captures_step: bool = False
    blocks_host: bool = False
    several_processes: bool = True
    splits_batches: bool = True
    sync_interval: int = 10


STRATEGIES: Mapping[str, Capabilities] = {
    "serial": Capabilities("base.Serial", blocks_host=True, sync_interval=1),
    "pinned": Capabilities("base.Pinned", pins="all"),
    "prefetch": Capabilities("base.Prefetch", pins="kept", copies_ahead=True),
    "streams": Capabilities("four_streams.FourStreams", pins="kept", copies_ahead=True, several_processes=False),
    # A step of staged joins the thread that calls backward.
    "staged": Capabilities(
        "staged.Staged", pins="kept", copies_ahead=True, blocks_host=True, several_processes=False, splits_batches=False
    ),
    "graph": Capabilities(
        "graph.Graph", pins="kept", copies_ahead=True, captures_step=True, several_processes=False, splits_batches=False
    ),
}
