"""What a training program wears so that its capture can be read, and the parts of a trainer that hides its copies.

    annotate, phase, mark      NVTX ranges (needs no torch)
    annotate_module            ranges for every module of a model, forward and backward
    Streams, hand_over         named streams and events, and the one place where a tensor crosses them
    PrefetchLoader             batch N+1 is copied while batch N computes
    PinnedCollator             batches made in pinned memory, within a budget
    SyncPolicy, LateLosses     when the host waits; losses read late, none lost
    Checkpoints                kept whole or not at all
    MicroBatches, reopening    out of memory and a failing loader, tried again

`python -m instrument.train` is a whole trainer made of them. Does nothing to a program where `nvtx` is not
installed; what needs torch is loaded when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from instrument.errors import ConfigError, InstrumentError
from instrument.ranges import annotate, mark, phase

if TYPE_CHECKING:
    from instrument.checkpoint.folder import Checkpoints
    from instrument.losses import LateLosses
    from instrument.modules import annotate_module
    from instrument.pinned import PinnedCollator
    from instrument.prefetch import PrefetchLoader
    from instrument.streams import Event, Stream, Streams, hand_over
    from instrument.sync import SyncPolicy
    from instrument.trainer.recover import MicroBatches, reopening

__all__ = [
    "Checkpoints",
    "ConfigError",
    "Event",
    "InstrumentError",
    "LateLosses",
    "MicroBatches",
    "PinnedCollator",
    "PrefetchLoader",
    "Stream",
    "Streams",
    "SyncPolicy",
    "annotate",
    "annotate_module",
    "hand_over",
    "mark",
    "phase",
    "reopening",
]

# Module of each name that needs torch: they are imported on first use, so that `import instrument` works without torch.
_MODULES = {
    "Checkpoints": "checkpoint.folder",
    "Event": "streams",
    "LateLosses": "losses",
    "MicroBatches": "trainer.recover",
    "PinnedCollator": "pinned",
    "PrefetchLoader": "prefetch",
    "Stream": "streams",
    "Streams": "streams",
    "SyncPolicy": "sync",
    "annotate_module": "modules",
    "hand_over": "streams",
    "reopening": "trainer.recover",
}


def __getattr__(name: str) -> object:
    """Import a public name that needs torch when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'instrument' has no attribute {name!r}")
    return getattr(import_module(f"instrument.{_MODULES[name]}"), name)
